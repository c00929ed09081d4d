"""Every row of the table of bad input: what a user does wrong, and what they are told."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

import kernbench
from kernbench import errors
from tests.cli import command_line
from tests.forked import run_forked


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def greedy_kernel(x_ptr, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    tile = tl.load(x_ptr + rows[:, None] * BLOCK + rows[None, :])
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for _ in range(4):
        tile = tl.load(x_ptr + rows[:, None] * BLOCK + rows[None, :])
        acc = tl.dot(tile, tile, acc)
    tl.store(x_ptr + rows[:, None] * BLOCK + rows[None, :], acc.to(tl.float16))


def causes(failure: BaseException) -> list[BaseException]:
    """Return the leaves of a group of exceptions."""
    if isinstance(failure, BaseExceptionGroup):
        return [leaf for exception in failure.exceptions for leaf in causes(exception)]
    return [failure]


def spawned(worker: Callable[..., None], ranks: int, machine: str = "ahbm") -> list[BaseException]:
    """Run ``worker(rank, torch)`` on every rank and return what went wrong."""
    with (
        pytest.raises(BaseException) as failure,
        kernbench.RuntimeContext(machine=machine, ranks=ranks) as torch,
    ):
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=ranks)
    return causes(failure.value)


def here(failure: BaseException) -> bool:
    return Path(__file__).name in str(failure)


@pytest.mark.parametrize(
    "difference", ["collective", "shape", "dtype", "op"], ids=lambda d: f"different-{d}"
)
def test_ranks_that_call_different_collectives_each_get_every_call(difference: str) -> None:
    def worker(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        odd = rank == 1
        x = torch.ones(6 if odd and difference == "shape" else 4)
        if odd and difference == "dtype":
            x = torch.ones(4, dtype="i32")
        if odd and difference == "collective":
            torch.distributed.broadcast(x, src=0)
        else:
            torch.distributed.all_reduce(x, op="max" if odd and difference == "op" else "sum")

    result = spawned(worker, 2)
    assert [type(item) for item in result] == [errors.CollectiveMismatchError] * 2
    for item in result:
        assert "rank 0" in str(item)
        assert "rank 1" in str(item)
        assert here(item), "the call sites are named"


def test_a_rank_that_raises_is_the_cause_and_who_waited_is_named() -> None:
    def worker(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        if rank == 1:
            raise ValueError("bad luck on rank 1")
        torch.distributed.all_reduce(torch.ones(4))

    result = spawned(worker, 3)
    assert isinstance(result[0], ValueError)
    assert "bad luck" in str(result[0])
    assert len(result) == 1, "ranks that only waited are no root causes"


def test_a_rank_that_returns_while_others_wait_is_named_first() -> None:
    def worker(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        if rank != 2:
            torch.distributed.all_reduce(torch.ones(4))

    text = "\n".join(str(item) for item in spawned(worker, 3))
    assert text.index("rank 2") < text.index("all_reduce")
    assert "rank 0" in text
    assert "rank 1" in text


def test_a_deadlock_lists_every_rank_and_where_it_waits() -> None:
    def worker(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        torch.distributed.recv(torch.zeros(4), src=1 - rank)

    result = spawned(worker, 2)
    assert any(isinstance(item, errors.DeadlockError) for item in result)
    text = "\n".join(str(item) for item in result)
    assert "recv" in text
    assert Path(__file__).name in text


def test_hbm_exhausted_names_sizes_and_the_largest_tensors() -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=False) as torch:
        kept = [torch.empty(1 << 30, dtype="f32", name=f"block{i}") for i in range(2)]
        with pytest.raises(errors.OutOfMemoryError, match=r"needs .* bytes, .* free") as failure:
            torch.empty(1 << 50, dtype="f32", name="too_big")
        assert "too_big" in str(failure.value)
        assert "block1" in str(failure.value)
        assert len(kept) == 2


def test_tcm_exhausted_is_tritons_out_of_resources_with_the_tiles() -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        x = torch.zeros((1024, 1024), dtype="f16")
        with pytest.raises(triton.runtime.errors.OutOfResources) as failure:
            greedy_kernel[(1,)](x, BLOCK=1024, num_stages=4)
    assert isinstance(failure.value, errors.OutOfMemoryError)
    assert Path(__file__).name in str(failure.value)


@pytest.mark.parametrize("access", ["reads", "writes"])
def test_out_of_bounds_names_tensor_byte_program_and_line(access: str) -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1) as torch:
        small = torch.zeros(100, dtype="f32", name="small")
        big = torch.zeros(256, dtype="f32", name="big")
        pair = (small, big) if access == "reads" else (big, small)
        with pytest.raises(errors.OutOfBoundsError) as failure:
            copy_kernel[(4,)](*pair, 200, BLOCK=64)
    text = str(failure.value)
    assert "small" in text
    assert access[:-1] in text
    assert "program (1, 0, 0)" in text
    assert "test_bad_input.py" in text
    assert "400" in text, "the first byte outside is where the tensor ends"


def test_a_rank_or_a_sip_that_is_not_there_gets_both_numbers() -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=2) as torch:
        with pytest.raises(ValueError, match=r"5.*2|2.*5"):
            torch.ahbm.set_device(5)
        with pytest.raises(ValueError, match=r"3.*2|2.*3"):
            torch.multiprocessing.spawn(lambda rank: None, nprocs=3)
    with (
        pytest.raises(ValueError, match=r"17.*16|16.*17"),
        kernbench.RuntimeContext(machine="ahbm", ranks=17),
    ):
        pass


BENCH = '''
"""A bench of the test's."""

def run(torch, size: int = 4, wrong: bool = False):
    x = torch.ones(size)
    y = x + x
    torch.testing.assert_close(y.numpy(), torch.full(size, 3.0 if wrong else 2.0).numpy())
'''


def kernbench_run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_forked("kernbench", "run", *arguments, cwd=cwd)


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["bench.py", "--machine", "ahmb"], "ahbm"),
        (["tp_mpl"], "tp_mlp"),
        (["bench.py", "--param", "sise=3"], "size"),
        (["bench.py", "--param", "size=three"], "int"),
        (["bench.py", "--machine", "machine.yaml"], "hbm"),
        (["missing.py"], "missing.py"),
    ],
    ids=["machine", "bench", "parameter", "value", "key", "file"],
)
def test_an_unknown_name_is_exit_2_with_the_nearest(
    arguments: list[str], nearest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.py").write_text(BENCH)
    (tmp_path / "machine.yaml").write_text("name: mine\nhbmm: 3\n")
    done = command_line.kernbench("run", *arguments)
    assert done.exit_code == 2, done.stderr
    assert nearest in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_bench_that_fails_its_check_is_exit_1_and_says_by_how_much(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    done = kernbench_run("bench.py", "--param", "wrong=true", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "4 of 4" in done.stderr
    assert "difference 1 at" in done.stderr
    assert "Traceback" not in done.stderr
    assert kernbench_run("bench.py", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_a_mistake_in_a_bench_shows_its_own_line_and_no_traceback_of_ours(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text("def run(torch):\n    return torch.ones(4) @ undefined\n")
    done = kernbench_run("bench.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "bench.py" in done.stderr
    assert "undefined" in done.stderr
    assert "site-packages" not in done.stderr
    assert "src/kernbench" not in done.stderr
