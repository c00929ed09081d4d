"""The model of PyTorch's caching allocator, and what programs see of it."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kernbench.errors import OutOfMemoryError  # noqa: E402
from kernbench.hardware import machine_text  # noqa: E402
from kernbench.torch_bridge.memory import (  # noqa: E402
    AllocatorSettings,
    CachingAllocator,
    DeviceFullError,
    MemoryBlock,
)
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

MIB = 1 << 20


class Device:
    def __init__(self, capacity: int) -> None:
        self.free = capacity

    def reserve(self, size: int) -> None:
        if size > self.free:
            raise DeviceFullError
        self.free -= size

    def release(self, size: int) -> None:
        self.free += size


def allocator(capacity: int = 1 << 40) -> CachingAllocator:
    device = Device(capacity)
    return CachingAllocator(device.reserve, device.release)


@pytest.mark.adr("0065-D1")
@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (9 * MIB, 9 * MIB, 20 * MIB),
        # What is left over stays with the block up to 1 MiB.
        (20 * MIB - MIB, 20 * MIB, 20 * MIB),
        (19 * MIB - 512, 19 * MIB - 512, 20 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
    ],
)
def test_sizes_are_those_of_pytorchs_allocator(asked: int, allocated: int, reserved: int) -> None:
    """Expected values are from PyTorch's constants: 512 B, 1, 2, 10 and 20 MiB."""
    result = allocator()
    result.allocate(asked)
    assert result.amounts.allocated_bytes.current == allocated
    assert result.amounts.reserved_bytes.current == reserved
    assert result.amounts.requested_bytes.current == asked


@pytest.mark.adr("0065-D1")
def test_a_block_that_was_given_back_is_used_again_on_its_stream_only() -> None:
    result = allocator()
    first = result.allocate(4 * MIB, "a")
    first.free()
    assert result.allocate(4 * MIB, "a").address == first.address
    result.allocate(4 * MIB, "b")
    assert result.amounts.reserved_bytes.current == 40 * MIB


@pytest.mark.adr("0065-D1")
def test_a_full_device_first_loses_what_is_kept_for_later() -> None:
    result = allocator(40 * MIB)
    result.allocate(30 * MIB).free()
    result.allocate(36 * MIB)
    assert result.amounts.reserved_bytes.current == 36 * MIB
    with pytest.raises(DeviceFullError):
        result.allocate(30 * MIB)
    assert (result.num_retries, result.num_failures) == (2, 1)


@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.integers(0, 3)), max_size=60))
def test_blocks_never_overlap_and_everything_comes_back(
    requests: list[tuple[int, int]],
) -> None:
    result, live = allocator(), list[MemoryBlock]()
    for size, action in requests:
        if action == 0 and live:
            live.pop(size % len(live)).free()
        else:
            live.append(result.allocate(size))
        spans = sorted((block.address, block.address + block.size) for block in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    result.settle()
    assert result.amounts.allocated_bytes.current == sum(block.size for block in live)
    for block in live:
        block.free()
    result.empty_cache()
    assert result.amounts.reserved_bytes.current == result.amounts.allocated_bytes.current == 0
    assert result.amounts.segments.current == 0


def counts(caching_allocator: CachingAllocator) -> list[tuple[int, int, int]]:
    """Return what an allocator says of its amounts."""
    amounts = [
        getattr(caching_allocator.amounts, name) for name in caching_allocator.amounts.__slots__
    ]
    return [(amount.current, amount.allocated, amount.peak) for amount in amounts]


class _AlwaysSettling(CachingAllocator):
    """Merges all that comes back, and cuts off what is asked for."""

    def _taken_back(self, *asked: object) -> None:
        """Nothing."""


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(1, 4096), st.integers(MIB - 600, 3 * MIB)), st.integers(0, 3)
        ),
        max_size=80,
    )
)
def test_a_block_that_is_taken_back_at_once_is_the_one_that_settling_would_give(
    requests: list[tuple[int, int]],
) -> None:
    both = [kind(lambda _: None, lambda _: None) for kind in (CachingAllocator, _AlwaysSettling)]
    live: list[list[MemoryBlock]] = [[], []]
    for size, action in requests:
        for result, blocks in zip(both, live, strict=True):
            if blocks and action < 3:
                # The same size again is what programs ask for.
                dropped = blocks.pop(size % len(blocks))
                asked = size if action == 0 else dropped.asked_bytes
                dropped.free()
                blocks.append(result.allocate(asked))
            else:
                blocks.append(result.allocate(size))
        first, second = ([(block.address, block.size) for block in blocks] for blocks in live)
        assert first == second
    first_counts, second_counts = (counts(answer) for answer in both)
    assert first_counts == second_counts


def test_an_equal_request_is_not_looked_at_again_before_the_free_blocks_change() -> None:
    looked = []

    class Watched(CachingAllocator):
        def _taken_back(self, *asked: Any) -> MemoryBlock | None:
            looked.append(asked)
            return super()._taken_back(*asked)

    result = Watched(lambda _: None, lambda _: None)
    block = result.allocate(1000)
    for _ in range(5):
        block.free()
        block = result.allocate(1000)
    assert len(looked) == 1
    result.allocate(MIB)
    block.free()
    block = result.allocate(1000)
    block.free()
    result.allocate(1001)
    assert len(looked) == 3


run = partial(simulated, "memory.py", machine="ahbm:2")


@pytest.mark.adr("0065-D2")
@pytest.mark.parametrize("data", [True, False])
def test_programs_see_what_their_tensors_take(data: bool) -> None:
    run("programs_see_what_their_tensors_take", data=data)


@pytest.mark.adr("0264-D2")
def test_contexts_and_buffers_of_groups_take_what_no_tensor_can_have() -> None:
    """Published: an H100 of 80 GB has 79.11 GiB; NCCL's ring buffers are 9.4 MiB a channel."""
    simulated("memory.py", "contexts_and_buffers", nprocs=2, machine="h100-sxm:2", data=False)


@pytest.mark.adr("0065-D2")
@pytest.mark.parametrize("data", [True, False])
def test_saved_tensors_and_gradients_count_while_they_live(data: bool) -> None:
    """Closed form: one 4 MiB tensor per layer is saved, and freed as backward comes by."""
    run("saved_tensors_and_gradients_count_while_they_live", data=data)


@pytest.fixture
def small_machine(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(re.sub(r"hbm_gib: [\d.]+", "hbm_gib: 0.0625", machine_text("ahbm")[0]))
    return str(path)


def last_line_of(case: str) -> int:
    """Return the number of the line at which a program runs out of memory."""
    lines = (PROGRAMS / "memory.py").read_text().splitlines()
    start = lines.index(f"def {case}() -> None:")
    return next(n for n, line in enumerate(lines, 1) if n > start and "# where the error" in line)


@pytest.mark.adr("0065-D3")
def test_too_much_is_an_error_that_names_the_allocation(small_machine: str) -> None:
    case = "too_much_is_an_error_that_names_the_allocation"
    with pytest.raises(OutOfMemoryError) as caught:
        run(case, data=False, machine=small_machine)
    said = str(caught.value)
    assert isinstance(caught.value, torch.OutOfMemoryError)
    line = f"memory.py:{last_line_of(case)}"
    for part in ("4.00 MiB for aten.add on rank 0 at", line, "most of it", "aten.zeros"):
        assert part in said, said


@pytest.mark.adr("0065-D3")
def test_too_much_for_the_host_too_is_the_devices_error(small_machine: str) -> None:
    """No host has 1 PiB: values are asked of it before the device is."""
    case = "too_much_for_the_host_too_is_the_devices_error"
    words = rf"1024.00 TiB for aten.empty on rank 0 at .*memory.py:{last_line_of(case)}"
    with pytest.raises(OutOfMemoryError, match=words):
        run(case, machine=small_machine)


@pytest.mark.adr("0065-D3")
def test_too_much_for_a_process_is_the_devices_error_too(tmp_path: Path) -> None:
    """No host has 1 PiB, which the device has, and the process may have half of it."""
    path = tmp_path / "large.yaml"
    path.write_text(re.sub(r"hbm_gib: [\d.]+", f"hbm_gib: {2 << 20}", machine_text("ahbm")[0]))
    with pytest.raises(
        OutOfMemoryError, match=r"set_per_process_memory_fraction lets .* 512\.00 TiB"
    ):
        run("too_much_for_a_process_is_the_devices_error_too", machine=str(path))


@pytest.mark.adr("0065-D3")
def test_too_much_of_what_was_done_before_is_an_error_too(small_machine: str) -> None:
    case = "too_much_of_what_was_done_before_is_an_error_too"
    words = rf"4.00 MiB for aten.add on rank 0 at .*memory.py:{last_line_of(case)}"
    with pytest.raises(OutOfMemoryError, match=words):
        run(case, machine=small_machine)


@pytest.mark.adr("0065-D3")
def test_a_run_ends_with_the_peak_of_each_rank() -> None:
    context = run("a_run_ends_with_the_peak_of_each_rank", machine="ahbm:4", nprocs=3)
    capacity = context.machine.sip.hbm_bytes / (1 << 30)
    assert [line for ask in context.run.remarks for line in ask()] == [
        "peak memory of ranks 0-1, each: 4.00 MiB in tensors, 20.00 MiB reserved of "
        f"{capacity:.2f} GiB",
        f"peak memory of rank 2: 8.00 MiB in tensors, 20.00 MiB reserved of {capacity:.2f} GiB",
    ]


@pytest.mark.adr("0065-D1")
@pytest.mark.parametrize("data", [True, False])
def test_tensors_of_collectives_are_freed_when_the_program_frees_them(data: bool) -> None:
    case = "tensors_of_collectives_are_freed_when_the_program_frees_them"
    run(case, nprocs=2, data=data)


def expandable(capacity: int) -> tuple[CachingAllocator, Device]:
    device = Device(capacity)
    settings = AllocatorSettings(expandable_segments=True)
    return CachingAllocator(device.reserve, device.release, capacity, settings), device


def test_an_expandable_segment_grows_where_it_is() -> None:
    """Memory is mapped in pieces of 2 MiB for small requests, and of 20 MiB for others."""
    result, device = expandable(400 * MIB)
    small = result.allocate(100)
    assert result.amounts.reserved_bytes.current == 2 * MIB
    first = result.allocate(30 * MIB)
    second = result.allocate(30 * MIB)
    assert second.address == first.address + 30 * MIB
    assert result.amounts.reserved_bytes.current == 62 * MIB
    assert small.address not in range(first.address, second.address)
    first.free()
    # It does not fit before the second one: what is free at the end grows.
    third = result.allocate(50 * MIB)
    assert third.address == second.address + 30 * MIB
    assert result.amounts.reserved_bytes.current == 122 * MIB
    # Of 30 MiB from 0 on, one whole piece is free.
    result.empty_cache()
    assert result.amounts.reserved_bytes.current == 102 * MIB
    assert device.free == 298 * MIB
    again = result.allocate(30 * MIB)
    assert again.address == first.address
    assert result.amounts.reserved_bytes.current == 122 * MIB


@given(
    st.lists(
        st.tuples(
            st.integers(1, 300 * MIB) | st.integers(1, 2 * MIB),
            st.sampled_from(["", "side"]),
            st.integers(0, 9),
            st.sampled_from([True] * 9 + [False]),
        ),
        max_size=60,
    )
)
def test_expandable_segments_keep_their_books(
    steps: list[tuple[int, str, int, bool]],
) -> None:
    """Blocks lie apart, sums are those of blocks, and a request that could fit does."""
    capacity = 1000 * MIB
    result, device = expandable(capacity)
    live: list[MemoryBlock] = []
    for size, stream, freed, is_on in steps:
        result.settings.expandable_segments = is_on
        result.settle()
        try:
            live.append(result.allocate(size, stream))
        except DeviceFullError:
            piece = 20 * MIB if size > MIB else 2 * MIB
            if is_on:
                # All whole pieces that nothing is in are the device's, and they are too few.
                assert device.free < -(-size // piece) * piece
        if freed < len(live):
            live.pop(freed).free()
        segments = result.segments()
        amounts = result.amounts
        assert sum(item.size for one in segments for item in one) == capacity - device.free
        assert amounts.reserved_bytes.current == capacity - device.free
        assert amounts.allocated_bytes.current == sum(item.size for item in live)
        places = sorted((item.address, item.size) for one in segments for item in one)
        assert all(a + size <= b for (a, size), (b, _) in pairwise(places))
        assert all(item.is_mapped for item in live)
    for item in live:
        item.free()
    result.empty_cache()
    assert device.free == capacity
    assert not result.segments()


@pytest.mark.parametrize("how", ["default", "variable", "old_variable", "call", "off_again"])
def test_programs_ask_for_expandable_segments(how: str) -> None:
    run = simulated("expandable_segments.py", how, machine="h100-sxm:1", data=False)
    said = [line for remark in run.run.remarks for line in remark() if "PYTORCH_ALLOC_CONF" in line]
    assert [line.rpartition(": ")[2] for line in said] == ["max_split_size_mb"] * (
        how == "old_variable"
    )
