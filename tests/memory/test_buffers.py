"""The HBM allocator of a SIP."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import BadPointerError, OutOfMemoryError
from kernbench.memory import Buffer, DeviceMemory, sip_base, sip_of
from kernbench.memory.buffers import ALIGNMENT_BYTES

CAPACITY = 64 * ALIGNMENT_BYTES


@pytest.mark.adr("0012-D1")
@given(st.lists(st.one_of(st.integers(0, 8 * ALIGNMENT_BYTES), st.none()), max_size=60))
def test_live_buffers_never_overlap_and_what_is_freed_comes_back(steps: list[int | None]) -> None:
    memory = DeviceMemory(0, CAPACITY, has_data=False)
    live: list[Buffer] = []
    for step in steps:
        if step is None:
            if live:
                memory.free(live.pop(len(live) // 2))
        else:
            try:
                live.append(memory.allocate(step, "x"))
            except OutOfMemoryError:
                continue
        ranges = sorted((b.address, b.address + max(b.size_bytes, 1)) for b in live)
        assert all(a[1] <= b[0] for a, b in pairwise(ranges))
        assert all(sip_base(0) <= a and b <= sip_base(0) + CAPACITY for a, b in ranges)
        assert all(b.address % ALIGNMENT_BYTES == 0 for b in live)
        for buffer in live:
            assert memory.find(buffer.address + max(buffer.size_bytes - 1, 0)) is buffer
    for buffer in live:
        memory.free(buffer)
    assert memory.used_bytes == 0
    # All holes have merged: everything fits in one piece again.
    assert memory.allocate(CAPACITY, "all").address == sip_base(0)


def test_out_of_memory_gives_requested_free_capacity_and_the_five_largest() -> None:
    memory = DeviceMemory(3, CAPACITY, has_data=False)
    kept = [memory.allocate(size * ALIGNMENT_BYTES, f"w{size}") for size in range(1, 9)]
    with pytest.raises(OutOfMemoryError) as caught:
        memory.allocate(40 * ALIGNMENT_BYTES, "fc1.weight (10, 1024) int8")
    text = str(caught.value)
    assert text.startswith(
        "HBM of SIP 3 is exhausted: fc1.weight (10, 1024) int8 needs 10,240 bytes, "
        "7,168 of 16,384 are free"
    )
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["w8", "w7", "w6", "w5", "w4"]
    assert isinstance(caught.value, MemoryError)
    assert len(kept) == 8


def test_freeing_twice_is_freeing_once() -> None:
    memory = DeviceMemory(0, CAPACITY, has_data=False)
    first = memory.allocate(1, "a")
    memory.free(first)
    memory.free(first)
    assert memory.used_bytes == 0


def test_the_peak_is_the_most_that_was_live_at_a_time() -> None:
    memory = DeviceMemory(0, CAPACITY, has_data=False)
    for _ in range(3):
        memory.free(memory.allocate(2 * ALIGNMENT_BYTES, "a"))
    assert memory.peak_bytes == 2 * ALIGNMENT_BYTES


@pytest.mark.adr("0012-D1")
def test_an_address_says_which_sip_it_belongs_to() -> None:
    for sip in (0, 1, 1023):
        memory = DeviceMemory(sip, CAPACITY, has_data=False)
        assert sip_of(memory.allocate(8, "a").address) == sip
    assert sip_of(0) == -1


@pytest.mark.parametrize("address", [0, 1, sip_base(0) + CAPACITY, sip_base(1), -5])
def test_an_address_of_nobody_is_refused(address: int) -> None:
    memory = DeviceMemory(0, CAPACITY, has_data=False)
    memory.allocate(8, "a")
    with pytest.raises(BadPointerError, match="belongs to no live tensor of SIP 0"):
        memory.find(address)


def test_memory_given_out_again_reads_as_zeros() -> None:
    memory = DeviceMemory(0, CAPACITY, has_data=True)
    first = memory.allocate(4, "a")
    first.bytes[:] = 255
    memory.free(first)
    second = memory.allocate(4, "b")
    assert second.address == first.address
    assert not second.bytes.any()
    assert first.bytes.all()


def test_adopted_elements_are_the_contents() -> None:
    buffer = DeviceMemory(0, CAPACITY, has_data=True).allocate(8, "a")
    buffer.adopt(np.array([[1.0, 2.0]], dtype=np.float32))
    assert buffer.bytes.view(np.float32).tolist() == [1.0, 2.0]


@pytest.mark.adr("0020-D2")
def test_poison_takes_memory_when_somebody_looks() -> None:
    """A petabyte of poison is no more than a flag, as a petabyte of zeros is."""
    memory = DeviceMemory(0, 1 << 50, has_data=True)
    memory.allocate(1 << 49, "large").poison()
    small = memory.allocate(8, "small")
    small.poison()
    assert small.written is not None
    assert not small.written.any()
    assert small.bytes.tobytes() == b"\xff" * 8
    small.written = None
    assert small.written is None
    assert small.bytes.tobytes() == b"\xff" * 8
