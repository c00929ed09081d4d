"""What the operation before leaves in the cache, held to closed forms."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import load_library, load_machine
from kernbench.library_kernels import AutogradPhase, LibraryKernel, Reuse, Tiles, Trip, time_kernel

SIP = load_machine("rtx-4090").sip
assert SIP.cache is not None
HELD = SIP.cache.held_bytes
CONSTANTS = load_library("sm89").constants("conv_copy")


@pytest.mark.adr("0048-D4")
@pytest.mark.parametrize(
    ("phase", "moved", "from_memory"),
    [
        (AutogradPhase.UNRECORDED, (0.5, 0.5), (0, 0)),
        (AutogradPhase.UNRECORDED, (0.75, 0.75), (0.375, 0.375)),
        (AutogradPhase.UNRECORDED, (1.5, 1.0), (1.5, 1.0)),
        (AutogradPhase.RECORDED, (0.5, 0.5), (0, 0.5)),
        (AutogradPhase.RECORDED, (0.75, 0.25), (0, 0.25)),
        # A third each: the gradient, what the forward kept, and the gradient that is made.
        (AutogradPhase.BACKWARD, (0.5, 0.25), (0.25, 0)),
        (AutogradPhase.BACKWARD, (0.25, 0.5), (0, 0)),
    ],
)
def test_the_phase_decides_what_is_found(
    phase: AutogradPhase, moved: tuple[float, float], from_memory: tuple[float, float]
) -> None:
    read, written = (item * HELD for item in moved)
    memory = Reuse(phase).from_memory(read, written, SIP)
    assert [item / HELD for item in memory] == pytest.approx(from_memory, abs=1e-6)


@pytest.mark.adr("0048-D5")
def test_cold_bytes_come_from_memory() -> None:
    x, weight, y = HELD / 8, HELD / 2, HELD / 8
    reuse = Reuse(AutogradPhase.UNRECORDED, round(weight))
    assert reuse.from_memory(x + weight, y, SIP) == pytest.approx((weight, 0))
    reuse = Reuse(AutogradPhase.RECORDED, round(weight))
    assert reuse.from_memory(x + weight, y, SIP) == pytest.approx((weight, y))
    assert Reuse(AutogradPhase.BACKWARD, HELD).from_memory(x, y, SIP) == pytest.approx((x, 0))


@given(
    st.sampled_from(AutogradPhase),
    st.floats(0, 4e9),
    st.floats(0, 4e9),
    st.integers(0, 1 << 32),
)
def test_memory_moves_a_share_and_more_where_more_is_cold(
    phase: AutogradPhase, read: float, written: float, cold: int
) -> None:
    memory = Reuse(phase, cold).from_memory(read, written, SIP)
    fewer = Reuse(phase).from_memory(read, written, SIP)
    for item, least, moved in zip(memory, fewer, (read, written), strict=True):
        assert 0 <= least <= item <= moved
    if read + written >= 2 * HELD:
        assert memory == (read, written)


def test_without_a_cache_all_comes_from_memory() -> None:
    bare = dataclasses.replace(SIP, cache=None) if dataclasses.is_dataclass(SIP) else None
    if bare is None:
        bare = SIP.model_copy(update={"cache": None})
    assert Reuse(AutogradPhase.UNRECORDED).from_memory(1 << 20, 1 << 20, bare) == (1 << 20, 1 << 20)


@pytest.mark.adr("0048-D6")
def test_a_kernel_waits_for_what_memory_moves() -> None:
    size = HELD / 2
    tiles = Tiles(count=4096, trips=1, trip=Trip(loaded_bytes=size / 4096), stored_bytes=0)
    kernel = LibraryKernel(
        name="conv_copy", tiles=(tiles,), resident=8, hbm_read_bytes=size, hbm_written_bytes=size
    )
    cold = time_kernel(kernel, SIP, CONSTANTS)
    half = time_kernel(kernel, SIP, CONSTANTS, reuse=Reuse(AutogradPhase.RECORDED))
    fresh = time_kernel(kernel, SIP, CONSTANTS, reuse=Reuse(AutogradPhase.UNRECORDED))
    assert [sum(item.hbm_bytes) for item in (cold, half, fresh)] == [2 * size, size, 0]
    assert half.hbm_us < cold.hbm_us
    assert fresh.hbm_us == 0
    assert cold.total_us > half.total_us > fresh.total_us > fresh.cache_us
