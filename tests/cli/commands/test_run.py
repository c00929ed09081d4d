"""``kernbench run`` runs any program, and says what to do where options do not fit it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kernbench.cli.app import app
from kernbench.cli.programs.benches import uses_of_own_torch
from kernbench.hardware import machine_text
from kernbench.runtime_api import RuntimeContext
from tests.cli.command_line import kernbench

Run = Callable[..., tuple[int, str, str]]

BENCH = "def run(torch, n: int = 4):\n    print('bench', n, torch.ones(n).tolist())\n"
SCRIPT = "import sys\nprint('script', sys.argv[1:])\n"
PYTORCH = """\
import argparse, os
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=4)
n = parser.parse_args().n
print("pytorch", torch.ones(n, device="cuda").sum().item(), os.environ.get("WORLD_SIZE"))
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    for name, text in (("bench", BENCH), ("script", SCRIPT), ("train", PYTORCH)):
        (tmp_path / f"{name}.py").write_text(text)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as status:
            app(["run", *arguments])
        out, err = capsys.readouterr()
        return int(status.value.code or 0), out, err

    return call


@pytest.mark.adr("0149-D1")
def test_one_command_runs_benches_and_scripts(run: Run) -> None:
    status, out, _ = run("bench.py", "-p", "n=2", "--machine", "h100-sxm", "--json", "r.json")
    assert (status, out.splitlines()[0]) == (0, "bench 2 [1.0, 1.0]")
    assert json.loads(Path("r.json").read_text())["machine"] == "h100-sxm"
    status, out, _ = run("--machine", "h100-sxm", "script.py", "--size", "3", "-v")
    assert (status, out.splitlines()[0]) == (0, "script ['--size', '3', '-v']")
    assert "On h100-sxm:" in out


@pytest.mark.parametrize("options", [("--nproc-per-node=2",), ("-p", "n=3")])
def test_a_file_that_cannot_be_read_is_said_before_options_that_do_not_fit(
    run: Run, options: tuple[str, ...]
) -> None:
    Path("broken.py").write_text("import torch\nx = = 3\n")
    status, _, err = run(*options, "broken.py")
    assert status == 1
    assert err.startswith("error: SyntaxError: invalid syntax\n  broken.py:2\n    x = = 3")


def test_a_file_that_is_missing_is_said_before_options_that_do_not_fit(run: Run) -> None:
    status, _, err = run("--nproc-per-node=2", "missing.py")
    assert status == 2
    assert err.startswith("error: no bench missing.py")


def test_a_report_is_of_the_ranks_that_were_asked_for_on_a_larger_machine(run: Run) -> None:
    pytest.importorskip("torch")
    status, out, _ = run("--nproc-per-node=3", "--price=2", "--json", "r.json", "train.py")
    assert (status, "\n3 ranks, " in out) == (0, True)
    report = json.loads(Path("r.json").read_text())
    assert report["ranks"] == len(report["per_rank"]) == report["energy"]["devices"] == 3
    hours = report["time_ns"] / 3600e9
    assert report["cost_usd"] == pytest.approx(3 * hours * 2)


def test_one_command_runs_pytorch_programs_with_options_of_torchrun(run: Run) -> None:
    pytest.importorskip("torch")
    status, out, _ = run("--nproc-per-node=2", "train.py", "--n", "7")
    assert (status, out.count("pytorch 7.0 2\n")) == (0, 2)
    status, out, _ = run("-m", "train", "--n", "3")
    assert (status, out.count("pytorch 3.0 1\n")) == (0, 1)


@pytest.mark.adr("0149-D2")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "2", "train.py"], "train.py is a PyTorch program; its ranks are --nproc-per"),
        (["--nproc-per-node", "2", "bench.py"], "bench.py is a bench; its ranks are --ranks N"),
        (
            ["--ranks", "2", "script.py"],
            "--ranks is for a bench, but script.py is a script without",
        ),
        (
            ["-p", "n=3", "train.py"],
            "--param is for a bench, but train.py is a PyTorch program; its",
        ),
        (["--seed", "3", "train.py"], "--seed is for a bench and script without PyTorch, but"),
        (["--target", "cuda", "train.py"], "kernbench script FILE takes it"),
        (["bench.py", "3"], "bench.py is a bench, which takes no 3; its parameters are --param"),
        (["bench.py", "--param"], "Option '--param' requires an argument.\n"),
        (["bench.py", "--n", "3"], "option: --n; a parameter of a bench is --param n=VALUE"),
        ([], "name a program: a Python file, or a bench: ccl_allreduce"),
    ],
)
def test_an_option_that_the_program_does_not_have_is_refused_before_it_runs(
    run: Run, arguments: list[str], words: str
) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert words in err


def test_options_of_ours_behind_a_program_are_noted_before_it_starts(run: Run) -> None:
    Path("says.py").write_text("import sys\nprint(sys.argv[1:], file=sys.stderr)\n")
    args = ["--trace=t.json", "--no-data", "--epochs", "3", "--no-data"]
    status, _, err = run("says.py", *args)
    note, value = err.splitlines()
    assert note == (
        "note: --trace, --no-data go to says.py, as with python; options of kernbench come before "
        "the program"
    )
    assert (status, value) == (0, str(args))
    assert not Path("t.json").exists()


@pytest.mark.parametrize("command", ["run", "script"])
def test_options_of_ours_behind_a_program_that_has_none_of_that_name_are_ours(
    run: Run, command: str
) -> None:
    Path("says.py").write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--epochs')\n"
        "parser.add_argument('--memory', action='store_true')\n"
        "print('got', parser.parse_args())\n"
    )
    args = ["--machine", "h100-sxm", "--epochs", "3", "--no-data", "--memory", "--json=t.json"]
    done = kernbench(command, "says.py", *args)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "got Namespace(epochs='3', memory=True)" in done.stdout
    assert json.loads(Path("t.json").read_text())["machine"] == "h100-sxm"
    # One that reads nothing; and what is meant for the program.
    Path("silent.py").write_text("print('silent')\n")
    assert kernbench(command, "silent.py", "--machine", "h200", "--json", "s.json").exit_code == 0
    assert json.loads(Path("s.json").read_text())["machine"] == "h200"
    refused = kernbench(command, "says.py", "--", "--machine", "h200")
    assert refused.exit_code == 2
    assert "unrecognized arguments: " in refused.stderr


def test_options_of_ours_behind_a_pytorch_program_are_ours(run: Run) -> None:
    pytest.importorskip("torch")
    status, out, err = run("train.py", "--machine", "h100-sxm")
    assert (status, err) == (0, "")
    assert "On h100-sxm:" in out


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, item in command.commands.items():
        if hasattr(item, "commands"):
            yield from _commands(item, (*path, name))
        else:
            yield (*path, name), item


def test_each_help_has_an_example_and_each_list_whole_sentences() -> None:
    root = typer.main.get_command(app)
    for path, command in _commands(root):
        words = " ".join(("kernbench", *path))
        assert re.search(rf"^{words} ?", command.help, re.MULTILINE), words
    for group in ((), ("machine",)):
        listed = kernbench(*group, "--help").output.partition("Commands:")[2]
        assert "..." not in listed
        assert listed.count(".\n") > 3


@pytest.mark.parametrize("args", [["--epochs"], ["--help"], ["--", "--machine"], ["--seed", "3"]])
def test_options_that_a_program_has_or_is_meant_to_get_are_not_noted(
    run: Run, args: list[str]
) -> None:
    Path("says.py").write_text("import sys\nprint(sys.argv[1:] == ['--seed', '3'])\n")
    status, _, err = run("says.py", *args)
    assert (status, err) == (0, "")


def test_help_shows_the_options_of_each_kind(run: Run) -> None:
    _, out, _ = run("--help")
    titles = [line for line in out.splitlines() if line.startswith("Options")]
    assert titles == [
        "Options:",
        "Options of benches and scripts:",
        "Options of benches and PyTorch programs:",
        "Options of benches:",
        "Options of scripts:",
        "Options of PyTorch programs, as torchrun's:",
    ]
    assert run("--help", "bench.py")[1].startswith("usage: kernbench run bench.py")
    assert run("--help", "script.py")[1] == out


def test_a_bench_that_uses_a_pytorch_of_its_own_is_told_so(run: Run) -> None:
    pytest.importorskip("torch")
    program = Path("own.py")
    program.write_text(
        "# coding: latin-1\nimport torch\nfrom torch.nn import functional as F  # é\n"
        "def check(x: torch.Tensor): return torch.ones(3)\n"
        "def shape(x): return x.torch\n"
        "def run(torch):\n    check(torch.ones(2))\n    F.relu\n    (lambda: torch.ones(2))()\n",
        encoding="latin-1",
    )
    status, out, _ = run("own.py")
    assert status == 0
    said = "own.py: check(), run() use the PyTorch that the file imports, which computes on the CPU"
    assert said in out
    program.write_text("import torch\ndef run(torch):\n    torch.ones(2)\n")
    assert uses_of_own_torch(program) == []


def test_a_bench_without_pytorch_is_told_that_it_needs_none(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    Path("own.py").write_text("import torch\ndef run(torch): ...\n")
    status, _, err = run("own.py")
    assert status == 1
    assert 'pip install "kernbench[torch]"; a bench needs none' in err


def test_keys_of_the_machine_are_set_as_a_file_would(run: Run) -> None:
    Path("scale.py").write_text("def run(torch):\n    torch.ones(1 << 20) * 2.0\n")
    preset = run("scale.py", "--json", "preset.json")
    changed = run("scale.py", "--set", "sip.cube.hbm_bandwidth_gbps=0.5x", "--json", "set.json")
    text = machine_text("ahbm")[0]
    slower = text.replace("hbm_bandwidth_gbps: 819.2", "hbm_bandwidth_gbps: 409.6")
    assert slower != text
    Path("slow.yaml").write_text(slower)
    file = run("scale.py", "--machine", "slow.yaml", "--json", "file.json")
    assert (preset[0], changed[0], file[0]) == (0, 0, 0)
    assert "ahbm was changed: sip.cube.hbm_bandwidth_gbps = 409.6 (was 819.2)" in changed[1]
    reports = [json.loads(Path(f"{name}.json").read_text()) for name in ("preset", "set", "file")]
    first, second, third = (report["per_rank"] for report in reports)
    assert second == third != first


@pytest.mark.parametrize("program", ["bench.py", "script.py", "train.py"])
def test_a_wrong_key_is_refused_before_any_program_runs(run: Run, program: str) -> None:
    if program == "train.py":
        pytest.importorskip("torch")
    status, out, err = run("--set", "sip.cube.hbm_bandwidth=2x", program)
    assert (status, out) == (2, "")
    assert "did you mean sip.cube.hbm_bandwidth_gbps (819.2)" in err


@pytest.mark.parametrize("machine", [None, "ahbm", "ahbm:2", "h100-sxm:2x4"])
def test_a_bench_and_a_context_have_the_same_ranks_and_sips_where_none_are_asked_for(
    run: Run, machine: str | None
) -> None:
    Path("sizes.py").write_text("def run(torch):\n    print(torch.world_size, torch.machine)\n")
    status, out, _ = run("sizes.py", *(() if machine is None else ("--machine", machine)))
    with RuntimeContext() if machine is None else RuntimeContext(machine) as torch:
        expected = f"{torch.world_size} {torch.machine}"
    assert (status, out.splitlines()[0]) == (0, expected)
    # A size is a number of ranks; a preset's name alone is none.
    assert torch.world_size == {"ahbm:2": 2, "h100-sxm:2x4": 8}.get(machine or "", 1)
    assert torch.machine.num_sips >= torch.world_size


def test_a_script_that_asks_pytorch_for_a_gpu_unseen_hears_how_it_would_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    hidden = tmp_path / "hidden.py"
    hidden.write_text("import torch\nfor _ in range(2):\n    torch.ones(2, device='cuda').cuda()\n")
    path = tmp_path / "starts.py"
    path.write_text(f"import runpy\nrunpy.run_path({str(hidden)!r})\n")
    for command, times in (("run", 1), ("script", 0)):
        with pytest.raises(SystemExit) as end:
            app([command, str(path)])
        assert not end.value.code
        err = capsys.readouterr().err
        assert err.count("note: starts.py asks PyTorch for a GPU") == times
        assert err.count("kernbench torchrun starts.py") == times
