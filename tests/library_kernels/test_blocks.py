"""Launches by their blocks: closed forms of what is under way, what waits, and what moves bytes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import SipSpec, changed_machine, load_machine
from kernbench.library_kernels import BlockLaunch, Sweep, time_blocks, wait_us

H100 = load_machine("h100-sxm").sip


def launch(blocks: int, size: float, under_way: float = 2048.0, threads: int = 128) -> BlockLaunch:
    return BlockLaunch(
        name="test",
        blocks=blocks,
        threads=threads,
        sweeps=(Sweep(loaded_bytes=size, under_way=under_way),),
        hbm_read_bytes=blocks * size,
    )


def busy_us(block_launch: BlockLaunch, sip: SipSpec = H100) -> float:
    time = time_blocks(block_launch, sip)
    return time.total_us - time.start_us


@pytest.mark.adr("0242-D1")
def test_few_blocks_take_the_round_trips_of_one() -> None:
    size = 16 << 20
    trips = size // 2048
    assert busy_us(launch(16, size)) == pytest.approx(trips * wait_us(H100), rel=0.01)
    # Twice as many bytes in as many blocks take twice as long; in twice as many blocks, no longer.
    assert busy_us(launch(16, 2 * size)) == pytest.approx(2 * busy_us(launch(16, size)), rel=0.01)
    assert busy_us(launch(32, size)) == pytest.approx(busy_us(launch(16, size)), rel=0.01)


@pytest.mark.adr("0242-D1")
def test_more_sms_or_bandwidth_do_nothing_for_sixteen_blocks() -> None:
    machine = load_machine("h100-sxm", 1)
    for changes in ({"sip.pes_per_cube": 264}, {"sip.cube.hbm_bandwidth_gbps": 6700}):
        changed = changed_machine(machine, changes).sip_at(0)
        assert busy_us(launch(16, 1 << 24), changed) == pytest.approx(
            busy_us(launch(16, 1 << 24)), rel=0.01
        )
        assert busy_us(launch(1 << 14, 1 << 20, 1 << 15), changed) <= busy_us(
            launch(1 << 14, 1 << 20, 1 << 15)
        )


def test_many_blocks_stream() -> None:
    item = launch(1 << 16, 1 << 16, 1 << 14)
    stream_us = H100.hbm_stream_ps(1 << 32) / 1e6
    assert busy_us(item) == pytest.approx(stream_us, rel=0.02)
    assert busy_us(replace(item, hbm_share=0.5)) == pytest.approx(2 * stream_us, rel=0.02)


def test_a_pe_holds_the_blocks_that_its_warps_allow() -> None:
    blocks = [launch(1 << 20, 1, threads=threads) for threads in (1024, 512, 96, 32)]
    assert [block.resident(H100) for block in blocks] == [2, 4, 21, 32]
    assert launch(132 * 3, 1).resident(H100) == 3
    assert replace(launch(1 << 20, 1), most_resident=5).resident(H100) == 5


def test_the_last_blocks_of_busy_pes_issue_as_fast_as_all() -> None:
    """What a PE issues for its blocks comes one after another, however many it holds."""
    item = replace(launch(H100.num_pes * 4 * 7 + 1, 1.0, threads=512), issue_cycles=1e5)
    assert item.resident(H100) == 4
    block_us = 1e5 / (float(H100.clock_ghz) * 1e3)
    assert busy_us(item) == pytest.approx((4 * 7 + 1) * block_us, rel=1e-3)


def test_a_part_of_what_is_under_way_waits_as_long_as_all_of_it() -> None:
    assert busy_us(launch(1, 2049)) == pytest.approx(2 * wait_us(H100), rel=0.01)
    assert busy_us(launch(1, 1)) == pytest.approx(wait_us(H100), rel=0.01)


@given(
    blocks=st.integers(1, 1 << 16), size=st.integers(1, 1 << 20), under_way=st.integers(32, 1 << 15)
)
def test_no_launch_beats_its_bytes_or_its_round_trips(
    blocks: int, size: int, under_way: int
) -> None:
    item = launch(blocks, size, under_way)
    result = busy_us(item) * (1 + 1e-9)
    assert result >= H100.hbm_stream_ps(blocks * size) / 1e6
    assert result >= -(-size // under_way) * wait_us(H100)
    assert busy_us(launch(blocks, size, 2 * under_way)) <= result
    assert busy_us(launch(blocks + 1, size, under_way)) >= busy_us(item)


def test_what_the_cache_serves_waits_less() -> None:
    near = launch(1, 1 << 20)
    near = replace(near, sweeps=(replace(near.sweeps[0], cached=1.0),))
    assert busy_us(near) < 0.8 * busy_us(launch(1, 1 << 20))
    assert wait_us(H100, 0.5) == pytest.approx((wait_us(H100) + wait_us(H100, 1.0)) / 2)
