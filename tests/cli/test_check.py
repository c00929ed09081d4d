"""``kernbench run --check``: the sanitizer from the command line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernbench.cli.programs.bench_file import known_benches
from tests.forked import BENCHES, PYTORCH, run_forked
from tests.programs import PROGRAMS
from tests.tiers import daily, of_campaigns


def kernbench_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(PROGRAMS / "racing_bench.py", folder / "bench.py")
    return run_forked("kernbench", "run", "bench.py", *arguments, cwd=folder)


@pytest.mark.adr("0020-D1")
def test_a_race_that_nobody_reads_is_found_with_check_only(tmp_path: Path) -> None:
    assert kernbench_run(tmp_path, "--no-check").returncode == 0
    result = kernbench_run(tmp_path, "--check")
    assert result.returncode == 1
    assert "DataRaceError" in result.stderr
    assert "bench.py:11" in result.stderr
    assert "bench.py:10" in result.stderr
    assert "rank 0" in result.stderr
    assert "Traceback" not in result.stderr
    assert "src/kernbench" not in result.stderr
    assert kernbench_run(tmp_path, "--check", "-p", "programs=1").returncode == 0


@pytest.mark.slow
@pytest.mark.adr("0108-D1")
@pytest.mark.parametrize(
    "words",
    [
        ("run", "masked_bench.py"),
        of_campaigns(("script", "masked_program.py", "cpu")),
        ("torchrun", "masked_program.py", "cuda"),
    ],
    ids=lambda words: words[0],
)
def test_every_command_that_checks_takes_what_to_allow(words: tuple[str, ...]) -> None:
    name, *file = words
    if name != "run":
        pytest.importorskip("torch")

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        imports = BENCHES if name == "run" else PYTORCH
        return run_forked("kernbench", name, *arguments, imports=imports, cwd=PROGRAMS)

    refused = command("--check", *file)
    assert refused.returncode == 1
    assert "(--allow masked-lanes)" in refused.stderr, refused.stderr
    allowed = command("--check", "--allow", "masked-lanes,out-of-bounds-reads", *file)
    assert allowed.returncode == 0, allowed.stderr
    assert allowed.stdout.startswith("15.0")
    wrong = command("--allow", "masked", *file)
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
    assert "arith.divf at bench.py:11" in failed.stderr


FEWER = {"oneshot_allreduce": ("-p", "sizes_kib=1,64"), "tp_mlp": ("-p", "iterations=2")}
"""Parameters of benches that only repeat themselves longer."""


@pytest.mark.slow
@pytest.mark.parametrize("bench", daily("gemm", "tp_from_scratch", of=known_benches()))
def test_shipped_benches_are_clean_under_check(bench: str, tmp_path: Path) -> None:
    arguments = ["run", bench, *FEWER.get(bench, ()), "--check-nan"]
    done = run_forked("kernbench", *arguments, cwd=PROGRAMS, timeout=300)
    assert done.returncode == 0, done.stderr
