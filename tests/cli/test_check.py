"""``kernbench run --check``: the sanitizer from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.cli.programs.bench_file import known_benches

BENCH = """
import triton
import triton.language as tl


@triton.jit
def shift(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at + 1, mask=at + 1 < n, other=0.0)
    tl.store(x_ptr + at, x / x, mask=at < n)


def run(torch, programs: int = 2, value: float = 1.0):
    x = torch.full((128,), value, name="x")
    shift[(programs,)](x, 128, BLOCK=128 // programs)
"""


def kernbench_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "bench.py").write_text(BENCH)
    return subprocess.run(
        [sys.executable, "-m", "kernbench", "run", "bench.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.adr("0020-D1")
def test_a_race_that_nobody_reads_is_found_with_check_only(tmp_path: Path) -> None:
    assert kernbench_run(tmp_path, "--no-check").returncode == 0
    found = kernbench_run(tmp_path, "--check")
    assert found.returncode == 1
    assert "DataRaceError" in found.stderr
    assert "bench.py:10" in found.stderr
    assert "bench.py:9" in found.stderr
    assert "rank 0" in found.stderr
    assert "Traceback" not in found.stderr
    assert "src/kernbench" not in found.stderr
    assert kernbench_run(tmp_path, "--check", "-p", "programs=1").returncode == 0


MASKED = """
import triton
import triton.language as tl


@triton.jit
def move(x_ptr, out_ptr, n):
    at = tl.arange(0, 16)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n))


def run(torch):
    out = torch.ones(16)
    move[(1,)](torch.ones(16), out, 15)
    print(sum(out.tolist()))
"""
AS_SCRIPT = """
import torch

out = torch.ones(16)
move[(1,)](torch.ones(16), out, 15)
print(out.sum().item())
"""


@pytest.mark.slow
@pytest.mark.adr("0108-D1")
def test_every_command_that_checks_takes_what_to_allow(tmp_path: Path) -> None:
    (tmp_path / "masked.py").write_text(MASKED)
    (tmp_path / "script.py").write_text(MASKED.partition("def run")[0] + AS_SCRIPT)
    to_cuda = AS_SCRIPT.replace("ones(16)", 'ones(16, device="cuda")')
    (tmp_path / "program.py").write_text(MASKED.partition("def run")[0] + to_cuda)

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kernbench", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    for name, file in (("run", "masked.py"), ("script", "script.py"), ("torchrun", "program.py")):
        if name != "run":
            pytest.importorskip("torch")
        refused = command(name, "--check", file)
        assert refused.returncode == 1
        assert "(--allow masked-lanes)" in refused.stderr, refused.stderr
        allowed = command(name, "--check", "--allow", "masked-lanes,out-of-bounds-reads", file)
        assert allowed.returncode == 0, allowed.stderr
        assert allowed.stdout.startswith("15.0")
    wrong = command("run", "--allow", "masked", "masked.py")
    assert wrong.returncode == 2
    assert "there is no 'masked' to allow; did you mean masked-lanes?" in wrong.stderr


def test_the_first_nan_is_a_warning_or_an_error(tmp_path: Path) -> None:
    arguments = ("-p", "programs=1", "-p", "value=0")
    warned = kernbench_run(tmp_path, "--check", *arguments)
    assert warned.returncode == 0
    assert "NonFiniteWarning" in warned.stderr
    failed = kernbench_run(tmp_path, "--check-nan", *arguments)
    assert failed.returncode == 1
    assert "NonFiniteError" in failed.stderr
    assert "arith.divf at bench.py:10" in failed.stderr


FEWER = {"oneshot_allreduce": ("-p", "sizes_kib=1,64"), "tp_mlp": ("-p", "iterations=2")}
"""Parameters of benches that only repeat themselves longer."""


@pytest.mark.slow
@pytest.mark.parametrize("bench", known_benches())
def test_shipped_benches_are_clean_under_check(bench: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernbench", "run", bench, *FEWER.get(bench, ()), "--check-nan"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
