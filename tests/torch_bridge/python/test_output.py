"""What ranks print, and whose it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

from kernbench.cli.app import app  # noqa: E402
from tests.forked import PYTORCH, run_forked  # noqa: E402
from tests.tiers import of_campaigns  # noqa: E402
from tests.torch_bridge.running import PROGRAMS  # noqa: E402


def run(*options: str, debugs: str = "") -> list[str]:
    command = ["torchrun", "--nproc-per-node", "3", *options, str(PROGRAMS / "printing.py"), debugs]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return done.stdout.partition("\nOn ")[0].splitlines()


def test_every_rank_prints_by_default() -> None:
    assert sum(line.endswith("hello") for line in run()) == 3


@pytest.mark.parametrize(("ranks", "shown"), [("0", {"0"}), ("0,2", {"0", "2"})])
def test_ranks_can_be_chosen(ranks: str, shown: set[str]) -> None:
    lines = run("--ranks-print", ranks)
    assert {line[-1] for line in lines if line.startswith("from")} == shown


def test_lines_are_whole_and_say_whose_they_are() -> None:
    lines = run("--prefix")
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        said = [line.removeprefix(f"[rank {rank}] ") for line in mine]
        assert said[:3] == ["hello", f"from {rank}", "un"]
        assert said[3] == "finished"
    assert all(line.startswith("[rank ") for line in lines if line)


def test_a_rank_that_is_hidden_still_shows_its_debugger() -> None:
    lines = run("--ranks-print", "0", debugs="1")
    assert "from 0" in lines
    assert "from 1" not in lines
    assert any(line.endswith("42") for line in lines)


@pytest.mark.parametrize("ranks", ["", "x", "-1", "3", "0,7"])
def test_ranks_that_cannot_be_are_refused(tmp_path: Path, ranks: str) -> None:
    path = tmp_path / "program.py"
    path.write_text("pass")
    done = CliRunner().invoke(
        app, ["torchrun", "--nproc-per-node", "3", "--ranks-print", ranks, str(path)]
    )
    assert done.exit_code == 2
    assert "--ranks-print must be all, or ranks from 0 to" in done.stderr
    assert sys.stdout is not None


def test_a_node_has_a_log_of_what_its_ranks_print(tmp_path: Path) -> None:
    command = ["torchrun", "--nnodes", "2", "--nproc-per-node", "2", "--machine", "h100-sxm:2x2"]
    command += ["--ranks-print", "3", "--log-dir", str(tmp_path / "logs")]
    done = CliRunner().invoke(app, [*command, str(PROGRAMS / "printing.py"), ""])
    assert done.exit_code == 0, done.output
    for node, ranks in enumerate([(0, 1), (2, 3)]):
        lines = (tmp_path / "logs" / f"node{node}.log").read_text().splitlines()
        for rank in ranks:
            said = [line for line in lines if line.startswith(f"[rank {rank}] ")]
            assert said[:2] == [f"[rank {rank}] hello", f"[rank {rank}] from {rank}"]
            assert f"[rank {rank}] unfinished" in said or f"[rank {rank}] finished" in said
            assert f"[rank {rank}] to stderr" in said
        assert len(lines) == sum(
            line.startswith(tuple(f"[rank {it}]" for it in ranks)) for line in lines
        )
    assert "from 0" not in done.stdout


def test_a_folder_of_logs_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("mine")
    command = ["torchrun", "--log-dir", str(tmp_path / "logs"), str(PROGRAMS / "printing.py"), ""]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert f"error: --log-dir {tmp_path / 'logs'}: File exists" in done.output


def test_ranks_have_streams_and_folders_of_their_own(tmp_path: Path) -> None:
    program, here = PROGRAMS / "streams_and_folders.py", Path.cwd()
    command = ["torchrun", "--nproc-per-node", "2", str(program), str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    said, _, report = done.stdout.partition("\nOn ")
    assert sorted(said.splitlines()) == ["after of 1", "before of 1", "end of 0", "end of 1"]
    assert (tmp_path / "0" / "own.txt").read_text() == "before of 0\nafter of 0\n"
    assert not (tmp_path / "1" / "own.txt").read_text()
    # The report is the command's, whatever the program prints to.
    assert (tmp_path / "1" / "tee.txt").read_text() == "end of 1\n"
    assert "2 ranks" in report
    assert Path.cwd() == here


@pytest.mark.parametrize("statement", ["sys.stdout = None", "sys.stdout = io.StringIO()"])
def test_the_report_is_printed_where_the_command_prints(tmp_path: Path, statement: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import io, sys\nimport torch\n{statement}\nprint('mine')\n")
    done = CliRunner().invoke(app, ["torchrun", str(program)])
    assert done.exit_code == 0, done.output
    assert "mine" not in done.stdout
    assert "1 rank" in done.stdout


@pytest.mark.parametrize("name", ["stdout", of_campaigns("stderr")])
def test_a_program_may_close_its_output_and_the_report_is_whole(tmp_path: Path, name: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nimport torch\nprint('mine')\nsys.{name}.close()\n")
    done = run_forked("kernbench", "torchrun", str(program), imports=PYTORCH)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mine\n")
    assert "\n1 rank, " in done.stdout
