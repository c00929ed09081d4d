"""Files that a program leaves open are whole, as after real Python."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.forked import PYTORCH, run_forked
from tests.torch_bridge.running import PROGRAMS

PROGRAM = PROGRAMS / "leaving_open.py"


def found(folder: Path) -> dict[str, str]:
    with (
        gzip.open(folder / "packed.gz", "rt") as packed,
        zipfile.ZipFile(folder / "archive.zip") as archive,
    ):
        return {
            "packed": packed.read(),
            "archive": archive.read("name").decode(),
            **{path.name: path.read_text() for path in folder.glob("*.txt")},
        }


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("real")
    subprocess.run([sys.executable, str(PROGRAM), str(folder)], check=True, timeout=60)
    return found(folder / "0")


def run(*command: str) -> None:
    done = run_forked("kernbench", *command, imports=PYTORCH)
    assert done.returncode == 0, done.stderr


def test_files_that_a_script_leaves_open_are_written(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    assert expected["text.txt"] == "a line\n"
    run("script", str(PROGRAM), str(tmp_path))
    assert found(tmp_path / "0") == expected


def test_files_that_ranks_leave_open_are_written_when_each_ends(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    pytest.importorskip("torch")
    run("torchrun", "--nproc-per-node", "2", str(PROGRAM), str(tmp_path))
    assert found(tmp_path / "0") == expected
    assert found(tmp_path / "1") == {**expected, "stdout.txt": "printed\n"}


def test_a_command_that_ends_at_once_writes_them_too(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    ending = f"import sys; sys.argv[1:] = [{str(tmp_path)!r}]; exec(open({str(PROGRAM)!r}).read())"
    leaves = "from kernbench.cli.console.streams import leave; leave(0)"
    subprocess.run([sys.executable, "-c", f"{ending}\n{leaves}"], check=True, timeout=60)
    assert found(tmp_path / "0") == expected
