"""Kernels that talk to other ranks: programs that go different ways, or have no room, or fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.errors import DataRaceError, DeadlockError, DeviceAssertError, OutOfBoundsError
from kernbench.hardware import PS_PER_NS, ceil_ps, load_machine
from kernbench.runtime_api import RuntimeContext
from tests.interleaved.live_kernels import locked_sum
from tests.runtime_api import symmetric_kernels as kernels
from tests.runtime_api.front.test_symmetric_memory import error_of, on_ranks
from tests.runtime_api.launches.test_paced_launch import launches, parts_of, rows_of, share


@pytest.mark.adr("0032-D2")
def test_each_program_may_go_to_another_rank() -> None:
    def body(torch: Any, rank: int) -> None:
        _, shared = share(torch, np.arange(48, dtype=np.float32) + 100 * rank)
        out = torch.zeros(48)
        torch.launch("all", kernels.from_all, shared.buffer_ptrs_dev, out, WORLD=3, B=8, grid=6)
        expected = [lane + 100 * (lane // 8 % 3) for lane in range(48)]
        assert out.tolist() == expected

    torch = on_ranks(3, body)
    peers = {row["peer"] for row in rows_of(torch, "all") if row["rank"] == 0 and row["link"] >= 0}
    assert peers == {1, 2}


@pytest.mark.adr("0032-D2")
def test_each_lane_may_go_to_another_rank() -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.arange(16, dtype=np.float32) + 100 * rank)
        which = torch.tensor([2, 0, 1, 1, 2, 2, 0, 1], dtype=torch.int32)
        out = torch.zeros(16)
        if rank == 0:
            kernels.lane_by_lane[(1,)](shared.buffer_ptrs_dev, which, out, B=8)
            expected = [lane + 100 * peer for lane, peer in enumerate(which.tolist())]
            assert out.tolist() == [*expected, *(item + 8 for item in expected)]
        torch.ahbm.synchronize()
        torch.distributed.barrier()
        counted = [which == rank for which in (2, 0, 1, 1, 2, 2, 0, 1)]
        expected = [lane + 8 + 100 * rank + counted[lane] for lane in range(8)]
        assert x.tolist()[8:] == expected

    on_ranks(3, body)


def test_rows_of_a_peer_are_found_by_indices() -> None:
    rows, values = np.array([3, 0, 5, 2]), np.ones((4, 16), np.float32)

    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros((6, 16), np.float32))
        if rank == 1:
            table = shared.get_buffer(0, (6, 16), torch.float32)
            index = torch.tensor(rows.tolist(), dtype=torch.int32)
            kernels.update_rows[(1,)](index, table, torch.from_numpy(values), D=16, B=4)
            torch.ahbm.synchronize()
        torch.distributed.barrier()
        if rank == 0:
            assert x.numpy().sum(axis=1).tolist() == [16, 0, 16, 16, 0, 16]

    torch = on_ranks(2, body)
    reads = [row for row in rows_of(torch, "update_rows") if row["kind"] == "dma_read_transfer"]
    # Rows of 64 bytes, a burst each.
    assert {row["bytes"] for row in reads} == {4 * 64}


@pytest.mark.adr("0032-D2")
def test_atomics_of_all_kinds_work_from_afar() -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.full(8, 3, np.int32))
        old = torch.zeros(8, dtype=torch.int32)
        if rank == 1:
            kernels.all_atomics[(1,)](shared.get_buffer(0, (8,), torch.int32), old)
            assert old.tolist() == [3] * 8
        torch.distributed.barrier()
        if rank == 0:
            assert x.tolist() == [8, 7, -7, 2, 11, 6, 4, 8]

    on_ranks(2, body)


@pytest.mark.adr("0032-D2")
def test_what_a_program_stores_it_sees() -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(2, np.float32))
        if rank == 0:
            out = torch.zeros(2)
            theirs = shared.get_buffer(1, (2,), torch.float32)
            flag = shared.get_signal_pad(1, (1,), torch.int32)
            kernels.overtake[(1,)](x, flag, theirs, out)
            assert out.tolist() == [1, 2]

    on_ranks(2, body)


@pytest.mark.adr("0032-D2")
def test_work_is_handed_out_from_one_counter_to_the_programs_of_all_ranks() -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(41, np.int32))
        there = shared.get_buffer(0, (41,), torch.int32)
        kernels.first_come[(3,)](there, there[1:], 40)
        torch.ahbm.synchronize()
        torch.distributed.barrier()
        if rank == 0:
            assert x.tolist() == [40 + 3 * 4, *[1] * 40]

    on_ranks(4, body)


ROOM = load_machine("ahbm", 1).sip.num_pes * load_machine("ahbm", 1).sip.pe.resident_programs


@pytest.mark.adr("0032-D2")
def test_programs_that_have_no_room_begin_when_others_have_ended() -> None:
    """Each program of a grid that does not fit meets its like on the other rank."""
    programs = ROOM + 40

    def body(torch: Any, rank: int) -> None:
        torch.distributed.symmetric_memory.set_signal_pad_size(8 * programs)
        x, shared = share(torch, np.full(programs, rank + 1, np.float32))
        out = torch.zeros(programs)
        torch.launch(
            "crowd", kernels.one_shot, parts_of(torch, shared, x), shared.signal_pad_ptrs_dev,
            out, programs, rank, WORLD=2, B=1, grid=programs,
        )  # fmt: skip
        assert out.tolist() == [3] * programs

    torch = on_ranks(2, body)
    starts = sorted(row["start_ps"] for row in rows_of(torch, "crowd") if row["rank"] == 0)
    first = launches(torch, "crowd")[0].starts_ps[0]
    assert starts[0] < first + 2_000_000 < starts[-1]


@pytest.mark.adr("0032-D6")
def test_who_waits_for_a_program_that_has_no_room_waits_for_ever() -> None:
    def body(torch: Any, rank: int) -> None:
        x, _ = share(torch, np.zeros(ROOM + 1, np.int32))
        kernels.wait_for_next[(ROOM + 1,)](x, torch.zeros(ROOM + 1), ROOM + 1)
        torch.ahbm.synchronize()

    with pytest.raises(DeadlockError, match=r"1 programs have not begun, as the PEs have no room"):
        on_ranks(1, body)


def test_programs_that_fit_may_wait_for_later_ones() -> None:
    def body(torch: Any, rank: int) -> None:
        x, _ = share(torch, np.zeros(20, np.int32))
        out = torch.zeros(20)
        kernels.wait_for_next[(20,)](x, out, 20)
        assert out.tolist() == list(range(20))

    on_ranks(1, body)


@pytest.mark.adr("0032-D3")
def test_a_poll_with_a_timeout_gives_up_after_it() -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(1, np.int32))
        out = torch.zeros(1, dtype=torch.int32)
        torch.launch("patience", kernels.patience, x, out, grid=1)
        assert out.tolist() == [5]
        if rank == 0:
            kernels.send[(1,)](shared.get_buffer(0, (1,), torch.int32), 1)
            kernels.patience[(1,)](x, out)
            assert out.tolist() == [6]

    torch = on_ranks(2, body)
    for launch in launches(torch, "patience")[:2]:
        assert 5_000_000 < launch.template.duration_ps < 8_000_000


@pytest.mark.adr("0032-D3")
def test_a_loop_that_counts_its_looks_takes_the_time_of_each() -> None:
    times = {}
    for most in (4, 8):

        def body(torch: Any, rank: int, most: int = most) -> None:
            x, _ = share(torch, np.zeros(1, np.int32))
            out = torch.zeros(1, dtype=torch.int32)
            torch.launch("look", kernels.count_tries, x, out, most, grid=1)
            assert out.tolist() == [most]

        (launch,) = launches(on_ranks(1, body), "look")
        times[most] = launch.template.duration_ps
    latency_ps = load_machine("ahbm", 1).sip.hbm_latency_ps
    assert times[8] - times[4] >= 4 * latency_ps


def test_prints_come_out_and_a_failed_assert_names_its_line(capsys: Any) -> None:
    def body(torch: Any, rank: int) -> None:
        _, shared = share(torch, np.zeros(1, np.int32))
        if rank == 0:
            theirs = shared.get_buffer(1, (1,), torch.int32)
            kernels.say_and_check[(2,)](theirs, 5, debug=True)
            torch.ahbm.synchronize()
            assert capsys.readouterr().out.count("looks at") == 2
            kernels.say_and_check[(4,)](theirs, 5, debug=True)
            torch.ahbm.synchronize()

    error = error_of(2, body)
    assert isinstance(error, DeviceAssertError)
    assert "symmetric_kernels.py:" in str(error)


@pytest.mark.adr("0032-D1")
def test_a_store_outside_of_a_peers_tensor_fails_where_it_arrives() -> None:
    def body(torch: Any, rank: int) -> None:
        _, shared = share(torch, np.zeros(4, np.float32))
        if rank == 0:
            theirs = shared.get_buffer(1, (4,), torch.float32)
            rows = torch.tensor([0, 1, 2, 9], dtype=torch.int32)
            kernels.update_rows[(1,)](rows, theirs, torch.zeros(4, 1), D=1, B=4)
            torch.ahbm.synchronize()

    error = error_of(2, body)
    assert isinstance(error, OutOfBoundsError)
    assert "symmetric_kernels.py:" in str(error)


def test_ranks_may_sit_on_other_sips_than_their_number() -> None:
    with RuntimeContext(ranks=4) as torch:

        def main(rank: int) -> None:
            torch.ahbm.set_device(3 - rank)
            torch.distributed.init_process_group()
            x, shared = share(torch, np.full(4, rank, np.float32))
            out = torch.zeros(4)
            parts = parts_of(torch, shared, x)
            kernels.sum_of_arguments[(1,)](parts, out, 4, WORLD=4, B=4)
            assert out.tolist() == [6] * 4

        torch.multiprocessing.spawn(main, nprocs=4)
    rows = rows_of(torch, "sum_of_arguments")
    assert {row["peer"] for row in rows if row["sip"] == 3 and row["link"] >= 0} == {1, 2, 3}


def test_a_kernel_of_another_stream_that_should_send_the_signal_is_named() -> None:
    def body(torch: Any, rank: int) -> None:
        x, _ = share(torch, np.zeros(1, np.int32))
        kernels.await_flag[(1,)](x, 3, torch.zeros(1, dtype=torch.int32))
        with torch.ahbm.stream(torch.ahbm.Stream()):
            kernels.send[(1,)](x, 3)
        torch.ahbm.synchronize()

    with pytest.raises(DeadlockError, match=r"kernel send on SIP 0 \(rank 0\) waits for its PEs"):
        on_ranks(1, body)


@pytest.mark.adr("0032-D3")
def test_a_lock_in_shared_memory_is_waited_for_as_long_as_others_hold_it() -> None:
    programs = 8

    def body(torch: Any, rank: int) -> None:
        locks, _ = share(torch, np.zeros(2, np.int32))
        x, out = torch.ones(programs, 16), torch.zeros(1, 16)
        torch.launch("sum", locked_sum, x, out, locks, grid=programs, B=16, GROUP=1)
        assert out.tolist() == [[programs] * 16]

    (launch,) = launches(on_ranks(1, body), "sum")
    # Each takes the lock, loads the count, then the sum; none of the three overlaps another's.
    cache = load_machine("ahbm", 1).sip.cache
    assert cache is not None
    latency_ps = ceil_ps(cache.latency_ns * PS_PER_NS)
    assert launch.template.duration_ps > programs * 3 * latency_ps


def handed_on(torch: Any, rank: int, is_told: bool) -> None:
    """Rank 0 fills its memory and signals rank 1, which signals rank 2, which reads it."""
    symmetric = torch.distributed.symmetric_memory
    x = symmetric.empty(64, dtype=torch.float32, name="x")
    shared = symmetric.rendezvous(x)
    done = torch.zeros(1, dtype=torch.int32)
    if rank == 0:
        x.fill_(3)
    if rank and is_told:
        kernels.await_by_cas[(1,)](shared.get_signal_pad(rank, (1,), torch.int32), 1, done)
    if rank < 2:
        kernels.send[(1,)](shared.get_signal_pad(rank + 1, (1,), torch.int32), 1)
    else:
        out = torch.ones(64) + shared.get_buffer(0, (64,), torch.float32)
        assert out.tolist() == [4] * 64 or not is_told


@pytest.mark.adr("0032-D8")
def test_signals_order_what_kernels_of_ranks_do() -> None:
    on_ranks(3, lambda torch, rank: handed_on(torch, rank, True), check=True)


@pytest.mark.adr("0032-D8")
def test_without_a_signal_two_ranks_race() -> None:
    error = error_of(3, lambda torch, rank: handed_on(torch, rank, False), check=True)
    assert isinstance(error, DataRaceError)
    assert "rank 2" in str(error)
    assert "writes in fill" in str(error)
    assert "rank 0" in str(error)
