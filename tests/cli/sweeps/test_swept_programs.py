"""Sweeps and searches of programs that are no benches: their options, environment, ranks, nodes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kernbench.cli.sweeps.points import options_of, spelled
from kernbench.errors import UsageError
from tests.cli.command_line import kernbench
from tests.cli.sweeps.conftest import Sweep

TRAIN = """
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument("--hidden-size", type=int, default=256)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--bias", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()
steps = int(os.environ.get("STEPS", "3"))
print(args, steps, os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"])
model = torch.nn.Linear(args.hidden_size, args.hidden_size, bias=args.bias, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
x = torch.randn(args.batch, args.hidden_size, device="cuda")
for _ in range(steps):
    model(x).sum().backward()
    optimizer.step()
torch.cuda.synchronize()
"""


@pytest.fixture
def train(folder: Path) -> str:
    (folder / "train.py").write_text(TRAIN)
    return "train.py"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_options_are_read_from_the_text_of_a_program(train: str) -> None:
    options = options_of(Path(train))
    assert list(options) == ["hidden_size", "batch", "bf16", "bias"]
    assert options["batch"].default == 8
    values = {"hidden_size": "64", "bf16": "true", "bias": "false", "other": "1"}
    value = [*spelled(values, options)]
    assert value == ["--hidden-size", "64", "--bf16", "--no-bias", "--other", "1"]
    assert [*spelled({"bf16": "no", "bias": "on"}, options)] == ["--bias"]
    with pytest.raises(UsageError, match="--bf16 is a flag: true or false, but got '3'"):
        list(spelled({"bf16": "3"}, options))


@pytest.mark.adr("0261-D4")
def test_a_pytorch_program_is_swept_over_its_options_ranks_and_environment(
    sweep: Sweep, train: str, folder: Path
) -> None:
    pytest.importorskip("torch")
    grid = ("--arg", "hidden-size=64,8192", "-g", "ranks=1,2", "-g", "env.STEPS=3")
    words = (train, *grid, "--machine", "h100-sxm", "--no-data", "--tokens", "batch*ranks")
    status, out, err = sweep(*words, "--table", "a.csv", "--", "--batch", "4096")
    assert (status, err) == (0, "")
    assert "4 points: 4 done" in out
    rows = rows_of(folder / "a.csv")
    assert [(row["hidden_size"], row["ranks"]) for row in rows] == [
        ("64", "1"), ("64", "2"), ("8192", "1"), ("8192", "2")
    ]  # fmt: skip
    for row in rows:
        step_ns = float(row["step_ns"])
        assert 0 < 2 * step_ns < float(row["time_ns"])
        expected = 4096 * int(row["ranks"]) / step_ns * 1e9
        assert float(row["tokens_per_s"]) == pytest.approx(expected)
        # The input, weights and their gradients at the least.
        width = int(row["hidden_size"])
        assert int(row["device_memory_bytes"]) > 4 * (4096 * width + 2 * width * width)
        assert float(row["cost_usd"]) > 0
    assert float(rows[2]["step_ns"]) > float(rows[0]["step_ns"])
    # Known points do not run again; another environment makes others.
    _, out, _ = sweep(*words, "--", "--batch", "4096")
    assert "4 points: 4 done; kept" in out
    _, out, _ = sweep(
        *words[:5], "-g", "env.STEPS=4", *words[7:], "--list", "--", "--batch", "4096"
    )
    assert "4 pending" in out


def test_mistakes_of_sweeps_of_programs_are_said(sweep: Sweep, train: str, folder: Path) -> None:
    pytest.importorskip("torch")
    for words, message in [
        (["-g", "hiden_size=1"], "did you mean hidden_size?; --arg hiden_size=VALUE,... gives it"),
        (["-g", "ranks=3", "-g", "nnodes=2", "--machine", "h100-sxm"], "3 ranks do not fill 2"),
        (["-g", "bf16=maybe"], "--bf16 is a flag"),
        (["-g", "batch=1", "--tokens", "bach"], "--tokens bach: bach must be a number, ranks"),
        (["--arg", "batch"], "--arg must be NAME=VALUE,VALUE"),
    ]:
        status, _, err = sweep(train, *words)
        assert status == 2, words
        assert message in err, err
    status, out, err = sweep(train, "--arg", "nosuch=1", "--machine", "h100-sxm", "--no-data")
    assert (status, err) == (1, "")
    assert "nosuch=1: unrecognized arguments: --nosuch 1" in " ".join(out.split())
    words = ["-g", "ranks=64", "--machine", "h100-sxm", "--list"]
    assert "--no-data --fold runs one for all that do the same" in sweep(train, *words)[2]
    assert "note" not in sweep(train, *words, "--fold", "--no-data")[2]


def test_a_script_without_pytorch_is_swept_too(sweep: Sweep, folder: Path) -> None:
    (folder / "script.py").write_text(
        "import sys\nprint(sys.argv)\nsys.exit('--bad' in sys.argv)\n"
    )
    status, out, _ = sweep("script.py", "--arg", "n=1,2", "-j", "1")
    assert (status, "2 points: 2 done" in out) == (0, True)


def test_the_best_of_a_programs_options_is_searched(train: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("optuna")
    words = ("--minimize", "step", "--minimize", "memory", "--no-data", "--machine", "h100-sxm")
    done = kernbench("search", train, "--space", "hidden_size=64,2048", *words)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split() == ["hidden_size", "step", "memory"]
    assert lines[1].split()[0] == "64"
    assert "the" in lines[-1]
    assert "of 2 trials, which are all points" in lines[-1]


def test_a_name_that_changes_nothing_is_noted(sweep: Sweep, folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "plain.py").write_text("import torch\ntorch.ones(8, device='cuda') + 1\n")
    words = ("plain.py", "--arg", "size=1,2", "--no-data")
    status, _, err = sweep(*words, "-g", "machine=ahbm,h100-sxm")
    assert (status, err) == (0, "note: no figure depends on size: does plain.py read it?\n")
