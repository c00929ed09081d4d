"""What a collective uses is not to be touched before it was waited for."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from kernbench.runtime_api import SpawnException  # noqa: E402
from kernbench.torch_bridge.placement.in_use import _touches  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

START = """
import os, torch, torch.distributed as dist
dist.init_process_group("{backend}")
rank = dist.get_rank()
if "{backend}" == "nccl":
    torch.cuda.set_device(rank)
device = torch.device("cuda", rank) if "{backend}" == "nccl" else torch.device("cpu")
x, out = torch.ones(4, device=device), torch.zeros(8, device=device)
work = dist.all_gather_into_tensor(out, x, async_op=True)
"""


def run(folder: Path, source: str, backend: str) -> None:
    path = folder / "case.py"
    path.write_text(START.replace("{backend}", backend) + source)
    simulated(path, nprocs=2)


@pytest.mark.adr("0063-D5")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("y = out + 1", "aten.add reads"),
        ("out.sum().item()", "aten.sum reads"),
        ("out[4:].mul_(2)", "aten.mul_ writes"),
        ("x.add_(1)", "aten.add_ writes"),
        ("torch._foreach_add_([x], 1)", "aten._foreach_add_ writes"),
        ("torch.add(torch.ones_like(x), 1, out=x)", "aten.add writes"),
        ("out.view(2, 4)[:, 3:] += 1", "aten.add_ writes"),
    ],
)
def test_touching_it_is_refused_with_both_lines(
    tmp_path: Path, source: str, what: str, backend: str
) -> None:
    with pytest.raises(SpawnException) as caught:
        run(tmp_path, source + "\nwork.wait()", backend)
    error = caught.value.exceptions[0]
    assert isinstance(error, UsageError)
    assert what in str(error)
    assert "in use by all_gather #1 on group world" in str(error)
    assert f"called at case.py:{START.count(chr(10))}; call wait()" in str(error)


@pytest.mark.adr("0063-D5")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_what_does_not_conflict_is_fine(tmp_path: Path, backend: str) -> None:
    source = """
y = x + 1          # it only reads x as well
view = out[2:]     # no data is touched
z = torch.empty_like(out)
work.wait()
out.add_(1)
x.zero_()
assert out.tolist() == [2.0] * 8
"""
    run(tmp_path, source, backend)


DISJOINT = """
from torch.distributed.distributed_c10d import _coalescing_manager
def coalesced(whole, part):
    with _coalescing_manager(dist.group.WORLD, async_ops=True) as work:
        dist.reduce_scatter_tensor(part, whole)
    return work
work.wait()
calls = {
    "all_reduce": lambda whole, part: dist.all_reduce(whole, async_op=True),
    "all_gather": lambda whole, part: dist.all_gather_into_tensor(whole, part, async_op=True),
    "reduce_scatter": lambda whole, part: dist.reduce_scatter_tensor(part, whole, async_op=True),
    "coalesced": coalesced,
}
first_of = {"all_reduce": 3, "all_gather": 1 + rank, "reduce_scatter": 3, "coalesced": 3}
for kind, call in calls.items():
    if kind == "coalesced" and device.type == "cpu":
        continue
    buffer = torch.zeros(64, device=device)
    whole, other = buffer[:32], buffer[32:]
    # The use is the first half of a row; columns of the second half are between its bytes.
    rows = buffer.view(2, 32)
    whole += rank + 1
    shard = whole.chunk(2)[rank]
    work = call(whole, shard)
    other += 1
    torch.add(other, 1, out=other)
    buffer.view(-1)[40:].mul_(2)
    rows[1:].add_(0)
    assert other[0].item() == 2 and other[9].item() == 4
    work.wait()
    assert shard[0].item() == first_of[kind], (kind, shard)
    # Between the bytes that the collective has, and beside them.
    columns = torch.zeros(4, 16, device=device)
    work = dist.all_reduce(columns[1, :8], async_op=True)
    columns[:, 8:] += 1
    columns.view(2, 2, 16)[:, 0, :8] += 1
    work.wait()
    assert columns[1].tolist() == [0] * 8 + [1] * 8
"""


@pytest.mark.adr("0063-D5")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_other_parts_of_a_buffer_are_the_programs(tmp_path: Path, backend: str) -> None:
    run(tmp_path, DISJOINT, backend)


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 4)])
def test_bytes_between_elements_are_told_from_theirs(shape: tuple[int, ...]) -> None:
    base = torch.zeros(shape)
    views = [base, base.transpose(0, -1), base[..., ::2], base[..., 1:3], base[1:], base[:1]]
    views += [base.expand(2, *shape)[:, ..., 1:]]
    for view in views:
        of_view = set(
            torch.arange(base.numel())
            .as_strided(view.shape, view.stride(), view.storage_offset())
            .flatten()
            .tolist()
        )
        for start in range(base.numel()):
            for stop in range(start + 1, base.numel() + 1):
                # A use of bytes that begin and end inside of elements.
                use: Any = SimpleNamespace(start=4 * start + 1, stop=4 * stop - 1)
                assert _touches(view, use) == (not of_view.isdisjoint(range(start, stop)))


FORGOTTEN = """
import gc, weakref
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
gc.disable()
x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
x_is_there = weakref.ref(x)
dist.all_reduce(x)
del x
# The latest call of a group is remembered.
dist.all_reduce(y)
torch.cuda.synchronize()
dist.barrier()
assert x_is_there() is None
"""


def test_tensors_of_a_collective_that_has_ended_go_with_their_last_reference(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(FORGOTTEN)
    try:
        simulated(program, nprocs=2)
    finally:
        gc.enable()
