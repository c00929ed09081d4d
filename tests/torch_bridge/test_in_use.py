"""What a collective uses is not to be touched before it was waited for."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from kernbench.runtime_api import SpawnException  # noqa: E402
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


@pytest.mark.adr("0084-D3")
def test_tensors_of_a_collective_that_has_ended_go_with_their_last_reference(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(FORGOTTEN)
    try:
        simulated(program, nprocs=2)
    finally:
        gc.enable()
