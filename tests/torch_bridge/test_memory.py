"""The model of PyTorch's caching allocator, and what programs see of it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kernbench.errors import OutOfMemoryError  # noqa: E402
from kernbench.hardware import machine_text  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.memory import CachingAllocator, DeviceFullError, MemoryBlock  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

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
    found = allocator()
    found.allocate(asked)
    assert found.amounts.allocated_bytes.current == allocated
    assert found.amounts.reserved_bytes.current == reserved
    assert found.amounts.requested_bytes.current == asked


@pytest.mark.adr("0065-D1")
def test_a_block_that_was_given_back_is_used_again_on_its_stream_only() -> None:
    found = allocator()
    first = found.allocate(4 * MIB, "a")
    first.free()
    assert found.allocate(4 * MIB, "a").address == first.address
    found.allocate(4 * MIB, "b")
    assert found.amounts.reserved_bytes.current == 40 * MIB


@pytest.mark.adr("0065-D1")
def test_a_full_device_first_loses_what_is_kept_for_later() -> None:
    found = allocator(40 * MIB)
    found.allocate(30 * MIB).free()
    found.allocate(36 * MIB)
    assert found.amounts.reserved_bytes.current == 36 * MIB
    with pytest.raises(DeviceFullError):
        found.allocate(30 * MIB)
    assert (found.num_retries, found.num_failures) == (2, 1)


@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.integers(0, 3)), max_size=60))
def test_blocks_never_overlap_and_everything_comes_back(
    requests: list[tuple[int, int]],
) -> None:
    found, live = allocator(), list[MemoryBlock]()
    for size, action in requests:
        if action == 0 and live:
            live.pop(size % len(live)).free()
        else:
            live.append(found.allocate(size))
        spans = sorted((block.address, block.address + block.size) for block in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    found.settle()
    assert found.amounts.allocated_bytes.current == sum(block.size for block in live)
    for block in live:
        block.free()
    found.empty_cache()
    assert found.amounts.reserved_bytes.current == found.amounts.allocated_bytes.current == 0
    assert found.amounts.segments.current == 0


def counts(found: CachingAllocator) -> list[tuple[int, int, int]]:
    """Return what an allocator says of its amounts."""
    amounts = [getattr(found.amounts, name) for name in found.amounts.__slots__]
    return [(each.current, each.allocated, each.peak) for each in amounts]


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
        for found, blocks in zip(both, live, strict=True):
            if blocks and action < 3:
                # The same size again is what programs ask for.
                dropped = blocks.pop(size % len(blocks))
                asked = size if action == 0 else dropped.asked_bytes
                dropped.free()
                blocks.append(found.allocate(asked))
            else:
                blocks.append(found.allocate(size))
        first, second = ([(each.address, each.size) for each in blocks] for blocks in live)
        assert first == second
    first_counts, second_counts = (counts(found) for found in both)
    assert first_counts == second_counts


def test_an_equal_request_is_not_looked_at_again_before_the_free_blocks_change() -> None:
    looked = []

    class Watched(CachingAllocator):
        def _taken_back(self, *asked: Any) -> MemoryBlock | None:
            looked.append(asked)
            return super()._taken_back(*asked)

    found = Watched(lambda _: None, lambda _: None)
    block = found.allocate(1000)
    for _ in range(5):
        block.free()
        block = found.allocate(1000)
    assert len(looked) == 1
    found.allocate(MIB)
    block.free()
    block = found.allocate(1000)
    block.free()
    found.allocate(1001)
    assert len(looked) == 3


def run(folder: Path, source: str, data: bool, machine: str = "ahbm:2") -> RuntimeContext:
    path = folder / "program.py"
    path.write_text("import torch\n" + source)
    return simulated(path, data=data, machine=machine)


@pytest.mark.adr("0065-D2")
@pytest.mark.parametrize("data", [True, False])
def test_programs_see_what_their_tensors_take(tmp_path: Path, data: bool) -> None:
    source = """
cuda, MIB = torch.cuda, 1 << 20
assert cuda.memory_allocated() == cuda.memory_reserved() == 0
x = torch.empty(4 * MIB, device="cuda")
assert cuda.memory_allocated() == 16 * MIB == cuda.memory_reserved()
view = x[: 10]
del x
assert cuda.memory_allocated() == 16 * MIB  # the view holds on to it
y = view.clone()
assert cuda.memory_allocated() == 16 * MIB + 512
del view
assert cuda.memory_allocated(0) == 512 and cuda.max_memory_allocated() == 16 * MIB + 512
cuda.reset_peak_memory_stats()
assert cuda.max_memory_allocated() == 512
assert cuda.memory_allocated("cuda:1") == 0
free, total = cuda.mem_get_info()
assert total == cuda.get_device_properties(0).total_memory and total - free == 18 * MIB
cuda.empty_cache()
assert cuda.memory_reserved() == 2 * MIB == total - cuda.mem_get_info()[0]
assert "Allocated memory" in cuda.memory_summary()
y.untyped_storage().resize_(2 * MIB)
assert cuda.memory_allocated() == 2 * MIB
y.untyped_storage().resize_(0)
assert cuda.memory_allocated() == 0
assert torch.accelerator.memory_allocated() == 0
"""
    run(tmp_path, source, data)


@pytest.mark.adr("0065-D2")
@pytest.mark.parametrize("data", [True, False])
def test_saved_tensors_and_gradients_count_while_they_live(tmp_path: Path, data: bool) -> None:
    """Closed form: one 4 MiB tensor per layer is saved, and freed as backward comes by."""
    source = """
n = 1 << 20
x = torch.zeros(n, device="cuda", requires_grad=True)
y = x
before = torch.cuda.memory_allocated()
for _ in range(5):
    y = y.exp()
assert torch.cuda.memory_allocated() - before == 5 * 4 * n
loss = y.sum()
del y
loss.backward()
assert torch.cuda.memory_allocated() == 2 * 4 * n + 512  # x, its gradient, the loss
"""
    run(tmp_path, source, data)


@pytest.mark.adr("0065-D3")
def test_too_much_is_an_error_that_names_the_allocation(tmp_path: Path) -> None:
    machine = tmp_path / "small.yaml"
    text = re.sub(r"hbm_gib: [\d.]+", "hbm_gib: 0.0625", machine_text("ahbm")[0])
    machine.write_text(text)
    source = """
kept = torch.zeros(1 << 20, device="cuda")
try:
    kept.expand(1 << 10, -1).clone()
except torch.cuda.OutOfMemoryError as error:
    assert "Tried to allocate 4.00 GiB for aten.clone" in str(error), error
else:
    raise AssertionError
kept = [kept + each for each in range(1 << 10)]
"""
    with pytest.raises(OutOfMemoryError) as caught:
        run(tmp_path, source, data=False, machine=str(machine))
    said = str(caught.value)
    assert isinstance(caught.value, torch.OutOfMemoryError)
    for part in ("4.00 MiB for aten.add on rank 0 at", "program.py:10", "most of it", "aten.zeros"):
        assert part in said, said


@pytest.mark.adr("0065-D3")
def test_too_much_of_what_was_done_before_is_an_error_too(tmp_path: Path) -> None:
    machine = tmp_path / "small.yaml"
    machine.write_text(re.sub(r"hbm_gib: [\d.]+", "hbm_gib: 0.0625", machine_text("ahbm")[0]))
    source = """
x = torch.zeros(1 << 20, device="cuda")
kept = [x + x for _ in range(100)]
"""
    with pytest.raises(OutOfMemoryError, match=r"4.00 MiB for aten.add on rank 0 at .*py:4"):
        run(tmp_path, source, data=True, machine=str(machine))


@pytest.mark.adr("0065-D3")
def test_a_run_ends_with_the_peak_of_each_rank(tmp_path: Path) -> None:
    source = """
import os
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.empty((4 if rank < 2 else 8) << 20, dtype=torch.uint8, device="cuda")
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 0
"""
    path = tmp_path / "program.py"
    path.write_text("import torch\n" + source)
    context = simulated(path, nprocs=3)
    capacity = context.machine.sip.hbm_bytes / (1 << 30)
    assert [line for ask in context.run.remarks for line in ask()] == [
        "peak memory of ranks 0-1, each: 4.00 MiB in tensors, 20.00 MiB reserved of "
        f"{capacity:.2f} GiB",
        f"peak memory of rank 2: 8.00 MiB in tensors, 20.00 MiB reserved of {capacity:.2f} GiB",
    ]


FAR_AHEAD = """
import os
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
used = torch.cuda.memory_allocated
MIB = 1 << 20

for _ in range(8):
    x = torch.empty(MIB, device="cuda")
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    assert work.result()[0] is x
    work.wait()
    assert work.result()[0] is x
assert used() == 4 * MIB and torch.cuda.max_memory_allocated() <= 8 * MIB
del x, work
assert used() == 0

layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(8))).cuda()
for each in layers:
    fully_shard(each)
fully_shard(layers)
shards = used()
assert shards == 8 * MIB // 2, shards
x = torch.ones(1, 512, device="cuda")
for step in range(4):
    torch.cuda.reset_peak_memory_stats()
    layers(x).sum().backward()
    layers.zero_grad()
    # Two layers are whole at a time, one of them twice while it is put together, and gradients.
    assert used() <= shards + MIB, (step, used() / MIB)
    assert torch.cuda.max_memory_allocated() <= 2 * shards + 5 * MIB
"""


@pytest.mark.adr("0065-D1")
@pytest.mark.parametrize("data", [True, False])
def test_tensors_of_collectives_are_freed_when_the_program_frees_them(
    tmp_path: Path, data: bool
) -> None:
    path = tmp_path / "program.py"
    path.write_text("import torch\n" + FAR_AHEAD)
    simulated(path, nprocs=2, data=data)
