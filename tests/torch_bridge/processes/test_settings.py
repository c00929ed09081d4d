"""What a program sets for its process is each rank's own, as between real processes."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import RankFailedError  # noqa: E402
from tests.torch_bridge.running import real, simulated  # noqa: E402


def of_ranks(folder: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("for_a_while", marks=pytest.mark.adr("0214-D1")),
        pytest.param("of_one_rank", marks=pytest.mark.adr("0214-D1")),
        pytest.param("recorded_warnings", marks=pytest.mark.adr("0214-D2")),
        pytest.param("signals", marks=pytest.mark.adr("0214-D4")),
    ],
)
def test_ranks_set_for_themselves_what_real_processes_do(tmp_path: Path, case: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    real("settings.py", theirs, case, nprocs=2)
    simulated("settings.py", ours, case, nprocs=2)
    expected = of_ranks(theirs)
    assert len(expected) == 2
    assert of_ranks(ours) == expected


@pytest.mark.adr("0214-D1")
def test_what_ranks_have_set_is_gone_after_the_run(tmp_path: Path) -> None:
    filters = list(warnings.filters)
    simulated("settings.py", tmp_path, "of_one_rank", nprocs=2)
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.is_warn_always_enabled()
    assert repr(torch.tensor([1.23456])) == "tensor([1.2346])"
    assert warnings.filters == filters


def test_what_the_program_sets_before_it_starts_ranks_is_gone_after_the_run(
    tmp_path: Path,
) -> None:
    program = tmp_path / "sets.py"
    program.write_text(
        """\
import torch

torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)
"""
    )
    before = sys.argv
    simulated(program, "an argument")
    assert sys.argv is before
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.adr("0214-D3")
def test_spawned_processes_begin_as_new_ones_and_forked_ones_as_their_parent(
    tmp_path: Path,
) -> None:
    # As real processes print it, but for the seed of forked and new ones, which is random there.
    program = tmp_path / "starts.py"
    program.write_text(
        """\
import os
import sys
import torch
import torch.multiprocessing as mp


def work(rank, folder, name):
    with open(f"{folder}/{name}{rank}", "w") as file:
        cudnn = torch.backends.cudnn.enabled
        print(torch.ones(1).dtype, torch.get_float32_matmul_precision(), cudnn, file=file)
        print(torch.initial_seed() == 5, sys.path[-1], repr(torch.tensor([1.23456])), file=file)


if __name__ == "__main__":
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.enabled = False
    torch.set_printoptions(precision=2)
    sys.path.append("of the parent")
    folder = sys.argv[1]
    mp.spawn(work, (folder, "spawned"), nprocs=2)
    for method in ("fork", "spawn"):
        started = mp.get_context(method).Process(target=work, args=(0, folder, method))
        started.start()
        started.join()
"""
    )
    simulated(program, tmp_path)
    as_new = "torch.float32 highest True\nFalse of the parent tensor([1.2346])\n"
    as_parent = "torch.float64 high False\nTrue of the parent tensor([1.2346])\n"
    for name in ("spawned0", "spawned1", "spawn0"):
        assert (tmp_path / name).read_text() == as_new
    assert (tmp_path / "fork0").read_text() == as_parent.replace("1.2346", "1.23")


@pytest.mark.adr("0214-D4")
def test_a_rank_that_ends_itself_by_a_signal_is_named(tmp_path: Path) -> None:
    program = tmp_path / "killed.py"
    program.write_text(
        """\
import os
import signal
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGTERM)
dist.barrier()
"""
    )
    with pytest.raises(ExceptionGroup) as failed:
        simulated(program, nprocs=2)
    (cause,) = failed.value.exceptions
    assert isinstance(cause, RankFailedError)
    assert str(cause) == "rank 1 called os.kill(os.getpid(), SIGTERM)"


@pytest.mark.adr("0214-D1")
def test_a_rank_may_prefer_libraries_that_this_build_lacks(tmp_path: Path) -> None:
    program = tmp_path / "prefers.py"
    program.write_text(
        """\
import sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
linalg = torch.backends.cuda.preferred_linalg_library
blas = torch.backends.cuda.preferred_blas_library
if rank == 0:
    linalg("magma")
    blas("cublaslt")
dist.barrier()
with open(f"{sys.argv[1]}/rank{rank}", "w") as file:
    print(linalg(), blas(), file=file)
"""
    )
    simulated(program, tmp_path, nprocs=2)
    assert "Magma" in (tmp_path / "rank0").read_text()
    assert "Cublaslt" in (tmp_path / "rank0").read_text()
    assert "Magma" not in (tmp_path / "rank1").read_text()
    assert "Cublaslt" not in (tmp_path / "rank1").read_text()


@pytest.mark.adr("0282-D1")
@pytest.mark.adr("0282-D2")
@pytest.mark.parametrize("kind", ["ranks", "workers"])
def test_signals_of_other_processes_do_what_they_do_to_real_ones(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["workers"] if kind == "workers" else []
    context = simulated("signalled.py", *arguments, machine="ahbm:2")
    # As real processes print it: `python tests/torch_bridge/programs/signalled.py`.
    assert capfd.readouterr().out.splitlines() == [
        "by_handler SIGTERM 7 is gone",
        "by_handler SIGKILL -9 is gone",
        "by_loop SIGTERM 0 stopped is gone",
        "by_pause SIGTERM 0 stopped is gone",
        "interrupted SIGINT 0 stopped is gone",
        "goes_on SIGUSR1 0 1 heard, went on: True is gone",
        "default SIGTERM -15 is gone",
        "starts_another SIGTERM 0 its child 7 is gone",
        "ignores SIGTERM 0 stopped is gone",
    ]
    # Not to where those that have ended slept.
    assert context.run.simulation.now_ps < 3 * 10**12
