"""Broken programs end at once, and the error names every rank's line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import CollectiveMismatchError, DeadlockError, KernbenchError  # noqa: E402
from kernbench.runtime_api import SpawnException  # noqa: E402
from kernbench.torch_bridge.base.call_order import SwappedCallsWarning  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

START = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
x = torch.full((4,), float(rank), device="cuda")
"""
LINE = START.count("\n") + 1
"""Of the first line of a case."""

Fails = Callable[[str], Exception]


@pytest.fixture
def fails(tmp_path: Path) -> Fails:
    """Run a program on three ranks and return the error, a rank's own one if ranks raised."""

    def run(source: str) -> Exception:
        path = tmp_path / "case.py"
        path.write_text(START + source)
        with pytest.raises(Exception) as caught:
            simulated(path, nprocs=3)
        error = caught.value
        return error.exceptions[0] if isinstance(error, SpawnException) else error

    return run


MISMATCHES = {
    "kind": (
        "dist.all_reduce(x) if rank else dist.all_gather([x.clone() for _ in range(3)], x)",
        ["rank 0  all_gather of (4,) float32", "rank 1  all_reduce(sum) of (4,) float32"],
    ),
    "shape": ("dist.all_reduce(x[: 4 - rank])", ["of (4,) float32", "of (3,)", "of (2,)"]),
    "dtype": ("dist.all_reduce(x.half() if rank == 2 else x)", ["float32", "rank 2", "float16"]),
    "op": (
        "dist.all_reduce(x, op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)",
        ["all_reduce(sum)", "all_reduce(max)"],
    ),
    "root": ("dist.broadcast(x, src=rank % 2)", ["from position 0", "from position 1"]),
}


@pytest.mark.adr("0062-D4")
@pytest.mark.parametrize("case", MISMATCHES)
def test_calls_that_differ_are_listed_with_their_lines(case: str, fails: Fails) -> None:
    source, words = MISMATCHES[case]
    error = fails(source)
    assert isinstance(error, CollectiveMismatchError)
    for word in (*words, f"case.py:{LINE}"):
        assert word in str(error)
    assert str(error).count(f"case.py:{LINE}") == 3


DEADLOCKS = {
    "a rank is missing": (
        "if rank != 2: dist.all_reduce(x)",
        ["rank 2  finished", "rank 0  all_reduce #1 on group world, waits for rank 2"],
    ),
    "groups in another order": (
        "a, b = dist.new_group([0, 1]), dist.new_group([0, 1])\n"
        "if rank < 2:\n"
        "    for group in (a, b) if rank == 0 else (b, a): dist.all_reduce(x, group=group)",
        ["rank 0  all_reduce #1 on group 1, waits for rank 1", "on group 2, waits for rank 0"],
    ),
    "both receive": (
        "if rank < 2: dist.recv(x, 1 - rank)",
        ["rank 0  recv #1 from rank 1, waits for rank 1", "rank 1  recv #1 from rank 0"],
    ),
    "both send": (
        "if rank < 2: dist.send(x, 1 - rank); dist.recv(x, 1 - rank)",
        ["rank 0  send #1 to rank 1, waits for rank 1", "rank 1  send #1 to rank 0"],
    ),
    "a key that never comes": (
        "if rank == 0: dist.distributed_c10d._get_default_store().wait(['never'])",
        ["rank 0  store.wait('default_pg/0//never')", "rank 1  finished"],
    ),
    "inside backward": (
        "from torch.distributed._functional_collectives import all_reduce\n"
        "class Sum(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad): dist.all_reduce(grad); return grad\n"
        "p = torch.ones(4, device='cuda', requires_grad=True)\n"
        "(Sum.apply(p * 2) if rank != 1 else p * 2).sum().backward()",
        ["rank 1  finished", "rank 0  all_reduce #1 on group world, waits for rank 1"],
    ),
}


@pytest.mark.adr("0062-D4")
@pytest.mark.parametrize("case", DEADLOCKS)
def test_what_never_comes_is_a_deadlock_with_every_waiting_line(case: str, fails: Fails) -> None:
    source, words = DEADLOCKS[case]
    error = fails(source)
    assert isinstance(error, DeadlockError)
    for word in (*words, "case.py:"):
        assert word in str(error)


def test_a_rank_that_raises_ends_the_others_and_says_who_waited(fails: Fails) -> None:
    error = fails("if rank == 2: raise ValueError('bad batch')\ndist.all_reduce(x)")
    assert isinstance(error, ValueError)
    notes = "\n".join(error.__notes__)
    assert "rank 0  all_reduce #1 on group world, waits for rank 2" in notes
    assert f"case.py:{LINE + 1}" in notes


def test_a_rank_that_exits_early_is_named(fails: Fails) -> None:
    error = fails("if rank == 1: sys.exit(3)\ndist.barrier()")
    assert "rank 1 called sys.exit(3)" in str(error)
    assert any("rank 0  barrier #1" in note for note in error.__notes__)


def test_a_rank_that_ends_without_its_collective_is_named(fails: Fails) -> None:
    error = fails("if rank == 1: sys.exit(0)\ndist.barrier()")
    assert isinstance(error, DeadlockError)
    assert "rank 1  called sys.exit(0)" in str(error)


@pytest.mark.parametrize("call", ["os._exit(3)", "sys.exit(3)"])
def test_a_rank_that_leaves_at_once_ends_no_other_unheard(call: str, fails: Fails) -> None:
    error = fails(f"if rank == 1: {call}\ndist.barrier()")
    assert f"rank 1 called {call}" in str(error)
    assert any("rank 2  barrier #1" in note for note in error.__notes__)


def test_a_device_beyond_the_machine_is_told_with_who_waits(fails: Fails) -> None:
    error = fails("torch.cuda.set_device(rank + 2)\ndist.barrier()")
    notes = "\n".join(error.__notes__)
    assert (
        f"rank 0  barrier #1 on group world, waits for rank 2, since 0.000 us    case.py:{LINE + 1}"
        in notes
    )


def test_tensors_in_different_places_are_the_programs_mistake(fails: Fails) -> None:
    error = fails("x + torch.ones(4)")
    assert isinstance(error, KernbenchError)
    assert isinstance(error, RuntimeError)
    assert "found at least two devices, cuda:0 and cpu" in str(error)


def test_a_backend_for_each_place_takes_tensors_of_both(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(
        START
        + "for backend in ('cpu:gloo,cuda:nccl', 'cuda:nccl,cpu:gloo'):\n"
        + "    group = dist.new_group(backend=backend)\n"
        + "    for y in (torch.ones(2), torch.ones(2, device='cuda')):\n"
        + "        dist.all_reduce(y, group=group)\n"
        + "        assert y.tolist() == [3, 3]\n"
    )
    simulated(path, nprocs=3)


@pytest.mark.parametrize("call", ["torch.cuda.set_device(4)", "torch.ones(1, device='cuda:4')"])
def test_a_device_beyond_the_machine_is_refused_with_how_many_there_are(
    call: str, fails: Fails
) -> None:
    assert "cuda:4 does not exist: machine ahbm has 4 devices (0 to 3)" in str(fails(call))


def test_groups_of_other_ranks_under_one_name_are_refused(fails: Fails) -> None:
    error = fails("dist.all_reduce(x, group=dist.new_group([rank % 2, 2] if rank < 2 else [0, 2]))")
    assert "every rank must make the same groups in the same order" in str(error)


@pytest.mark.parametrize("call", ["dist.all_reduce(x.cpu())", "dist.send(x.cpu(), (rank + 1) % 3)"])
def test_a_tensor_of_the_host_is_refused_by_a_group_of_devices(call: str, fails: Fails) -> None:
    error = fails(call)
    assert "No backend type associated with device type cpu" in str(error)


def test_what_ddp_makes_itself_is_no_tensor_of_the_host(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(
        START
        + "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())\n"
        + "model(x).sum().backward()\n"
        + "assert torch.allclose(model.module.weight.grad, torch.ones(4, 4, device='cuda'))\n"
    )
    simulated(path, nprocs=3)


@pytest.mark.adr("0062-D4")
def test_receiving_from_any_rank_is_refused(fails: Fails) -> None:
    error = fails("dist.recv(x)")
    assert isinstance(error, NotImplementedError)
    assert "name the rank with src=" in str(error)


@pytest.mark.adr("0068-D1")
def test_equal_calls_in_opposite_order_are_a_warning_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(
        START
        + "def first(): dist.all_reduce(x)\n"
        + "def second(): dist.all_reduce(x)\n"
        + "for step in range(3):\n"
        + "    for call in (first, second) if rank < 2 else (second, first): call()\n"
    )
    with pytest.warns(SwappedCallsWarning) as caught:
        simulated(path, nprocs=3)
    (warning,) = [each for each in caught if each.category is SwappedCallsWarning]
    first, second = f"case.py:{LINE}", f"case.py:{LINE + 1}"
    assert (
        f"all_reduce #1 on group world and all_reduce #2 on group world may be swapped: rank 0 "
        f"calls them at {first} and {second}, rank 2 at {second} and {first}"
    ) in str(warning.message)


@pytest.mark.adr("0068-D1")
def test_equal_calls_swapped_between_branches_are_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(
        START
        + "y = x + 1\n"
        + "if rank == 0:\n    dist.all_reduce(x)\n    dist.all_reduce(y)\n"
        + "else:\n    dist.all_reduce(y)\n    dist.all_reduce(x)\n"
    )
    with pytest.warns(SwappedCallsWarning) as caught:
        simulated(path, nprocs=3)
    said = [str(each.message) for each in caught if each.category is SwappedCallsWarning]
    lines = [f"case.py:{LINE + each}" for each in (2, 3, 5, 6)]
    assert len(said) == 1
    assert f"rank 0 calls them at {lines[0]} and {lines[1]}, rank 1 at {lines[2]}" in said[0]


@pytest.mark.adr("0068-D1")
def test_calls_from_different_lines_in_one_order_are_no_warning(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(
        START
        + "for step in range(3):\n"
        + "    if rank == 0:\n        dist.all_reduce(x)\n        dist.broadcast(x, 0)\n"
        + "    else:\n        dist.all_reduce(x)\n        dist.broadcast(x, 0)\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        simulated(path, nprocs=3)
    assert not [each for each in caught if each.category is SwappedCallsWarning]


@pytest.mark.adr("0068-D2")
def test_forks_are_refused(fails: Fails) -> None:
    error = fails("if rank == 1: os.fork()\ndist.barrier()")
    assert isinstance(error, NotImplementedError)
    assert "start ranks with torch.multiprocessing.spawn, or work in threads" in str(error)
    assert any("rank 0  barrier #1" in note for note in error.__notes__)
    assert any(f"case.py:{LINE + 1}" in note for note in error.__notes__)


@pytest.mark.adr("0068-D2")
def test_compiling_is_left_out_with_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(
        START
        + "double = torch.compile(lambda x: x * 2)\n"
        + "@torch.compile(mode='max-autotune')\ndef half(x): return x / 2\n"
        + "layer = torch.nn.Linear(4, 4).cuda()\nlayer.compile()\n"
        + "assert half(double(x)).equal(x) and layer(x).shape == x.shape\n"
    )
    with pytest.warns(UserWarning, match="torch.compile compiles nothing") as caught:
        simulated(path, nprocs=3)
    found = [each for each in caught if "torch.compile" in str(each.message)]
    assert [Path(each.filename).name for each in found] == ["case.py"]


@pytest.mark.adr("0068-D3")
def test_an_interrupt_says_what_every_rank_was_at(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(
        START + "if rank == 1:\n" + "    raise KeyboardInterrupt\n" + "dist.all_reduce(x)\n"
    )
    with pytest.raises(KeyboardInterrupt) as caught:
        simulated(path, nprocs=2)
    first, second = caught.value.__notes__
    assert first == f"rank 1  ran    case.py:{LINE + 1}"
    assert "rank 0  all_reduce #1 on group world, waits for rank 1" in second
    assert f"case.py:{LINE + 2}" in second
