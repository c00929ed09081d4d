from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.cli.programs.bench_file import (
    find_bench,
    is_bench,
    known_benches,
    load_bench,
    shipped_folder,
)
from kernbench.cli.programs.kinds import Kind, kind_of
from kernbench.cli.programs.scripts import find_script
from kernbench.errors import UnknownNameError, UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.adr("0011-D2")
def test_shipped_benches_are_found_by_name_from_anywhere(here: Path) -> None:
    assert {"gemm", "ccl_allreduce", "tp_mlp"} <= set(known_benches())
    assert find_bench("gemm") == shipped_folder() / "gemm.py"


def test_a_command_in_python_that_is_installed_is_found_by_name(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(here / "bin"))
    (here / "bin").mkdir()
    (here / "bin" / "serves").write_text("#!/usr/bin/env python3\nimport torch\n")
    (here / "bin" / "binary").write_bytes(b"\x7fELF python")
    assert find_bench("serves") == find_script("serves") == here / "bin" / "serves"
    assert kind_of("serves") is Kind.PYTORCH
    with pytest.raises(UnknownNameError, match="unknown bench 'binary'"):
        find_bench("binary")


def test_a_file_is_found_by_its_path(here: Path) -> None:
    (here / "mine.py").write_text('"""What it asks."""\nRANKS = 3\ndef run(torch): ...\n')
    bench = load_bench("mine.py")
    assert (bench.name, bench.ranks, bench.about) == ("mine", 3, "What it asks.")
    assert load_bench("./mine.py").path == bench.path


def test_modules_beside_a_bench_can_be_imported(here: Path) -> None:
    (here / "beside_the_bench.py").write_text("ANSWER = 42\n")
    (here / "mine.py").write_text(
        "from beside_the_bench import ANSWER\ndef run(torch): return ANSWER\n"
    )
    assert load_bench("mine.py").run(None) == 42


def test_files_beside_a_bench_are_not_taken_for_modules_of_python(tmp_path: Path) -> None:
    for name in sys.stdlib_module_names - set(sys.builtin_module_names):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name}')")
    (tmp_path / "sched.py").write_text("N = 4")
    (tmp_path / "late.py").write_text("N = 8")
    (tmp_path / "bench.py").write_text(
        "from sched import N\n"
        "def run(torch):\n"
        "    from late import N as M\n"
        "    assert (N, M) == (4, 8)\n"
        "    torch.zeros(N)\n"
    )
    options = "--save", str(tmp_path / "a.run")
    command = [sys.executable, "-m", "kernbench", "run", str(tmp_path / "bench.py"), *options]
    # A new interpreter, which has imported nothing.
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("gem", "unknown bench 'gem': did you mean gemm"),
        ("mime.py", "no bench mime.py: did you mean mine.py"),
        (5000 * "x", "no bench x{80}[.]{3}: File name too long"),
        ("", "unknown bench ''"),
        ("nowhere/mine.py", "there is no folder nowhere"),
        ("dangling.py", "no bench dangling.py: it is a link to gone.py, which leads to no file"),
        ("loop.py", "no bench loop.py: it is a link to loop.py, which leads to no file"),
        ("pipe.py", "no bench pipe.py: it is a pipe, a socket or a device"),
        ("/dev/null", "no bench /dev/null: it is a pipe, a socket or a device"),
    ],
)
def test_a_bench_that_is_not_there_names_the_nearest(here: Path, given: str, words: str) -> None:
    (here / "mine.py").write_text("")
    (here / "dangling.py").symlink_to("gone.py")
    (here / "loop.py").symlink_to("loop.py")
    os.mkfifo(here / "pipe.py")
    with pytest.raises(UnknownNameError, match=words):
        find_bench(given)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", r"no function run\(torch"),
        ("run = 3", r"no function run\(torch"),
        ("def run(): ...", "must take torch"),
        ("RANKS = 0\ndef run(torch): ...", "RANKS must be a positive integer, but got 0"),
        ("RANKS = '4'\ndef run(torch): ...", "but got '4'"),
        ("async def run(torch): ...", r"run\(\) is a coroutine function; calling it runs none"),
        ("def run(torch): yield", r"run\(\) is a generator function; .* without async and yield"),
        ("async def run(torch): yield", r"run\(\) is a generator function"),
    ],
)
def test_a_file_that_is_no_bench_says_what_is_missing(here: Path, source: str, words: str) -> None:
    (here / "mine.py").write_text(source)
    with pytest.raises(UsageError, match=words):
        load_bench("mine.py")


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("async def slow(torch): ...\ndef run(torch): return slow(torch)", "a coroutine"),
        ("def run(torch): return (each for each in [1 / 0])", "a generator"),
    ],
)
def test_a_run_that_leaves_its_work_undone_is_refused(here: Path, source: str, kind: str) -> None:
    (here / "mine.py").write_text(source.replace("[1 / 0]", "[torch]"))
    with pytest.raises(UsageError, match=rf"mine\.py: run\(\) returned {kind}"):
        load_bench("mine.py").start(None, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'about'\nimport os\nRANKS = 2\ndef run(torch, n: int = 3): ...", True),
        ("async def run(ctx): ...", True),
        ("try:\n    import x\nexcept ImportError:\n    x = None\ndef run(torch): ...", True),
        ("import y\nsizes = y.sizes()\ndef run(torch): ...", True),
        ("def run(torch): ...\nif __name__ == '__main__':\n    run(None)", False),
        ("def run(torch): ...\nrun(None)", False),
        ("def main(): ...", False),
        ("def run(args): ...\nout = run(3)", False),
        ("run = 3", False),
    ],
)
def test_a_bench_does_nothing_but_define(source: str, expected: bool) -> None:
    assert is_bench(ast.parse(source)) == expected


def test_a_folder_is_no_bench(here: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        find_bench(str(here))


@pytest.mark.parametrize(
    ("text", "is_tried"),
    [
        ("import torch\ntorch.ones(1).cuda()\n", False),
        ("def main():\n    pass\nraise SystemExit(3)\n", False),
        ("from elsewhere import *\n", True),
        ("globals()['run'] = 1 / 0\n", True),
        ("run = 1 / 0\n", True),
        ("def f(:\n", True),
    ],
)
def test_a_program_without_run_is_no_bench_and_is_not_started(
    tmp_path: Path, text: str, is_tried: bool
) -> None:
    path = tmp_path / "program.py"
    path.write_text(text)
    with pytest.raises(Exception) as raised:
        load_bench(str(path))
    assert isinstance(raised.value, UsageError) is not is_tried
    assert is_tried or "as what they are" in str(raised.value)
