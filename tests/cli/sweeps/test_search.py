from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.cli.app import app
from kernbench.cli.sweeps.searching import Goals, SearchAxis, parse_space
from kernbench.cli.sweeps.study import split_values
from kernbench.errors import UsageError

Search = Callable[..., tuple[int, str, str]]


@pytest.fixture
def search(folder: Path, capsys: Any) -> Search:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as status:
            app(["search", *arguments])
        out, err = capsys.readouterr()
        return int(status.value.code or 0), out, err

    return call


def test_axes_as_of_another_command_are_answered_by_its_own(search: Search, capsys: Any) -> None:
    status, _, err = search("swept.py", "--grid", "n=1,2")
    assert status == 2
    assert "No such option: --grid (Possible options: --space)" in " ".join(err.split())
    with pytest.raises(SystemExit):
        app(["sweep", "swept.py", "--space", "n=1,2"])
    assert "(Possible options: --grid)" in " ".join(capsys.readouterr().err.split())


def test_ranges_and_choices_are_read() -> None:
    axes = parse_space(["m=16..64:16", "f=0.5..2", "k=1..1024:log", "b=[1,2],[3,4]"], split_values)
    assert axes == [
        SearchAxis(name="m", low=16, high=64, step=16),
        SearchAxis(name="f", low=0.5, high=2, is_whole=False),
        SearchAxis(name="k", low=1, high=1024, is_log=True),
        SearchAxis(name="b", values=("[1,2]", "[3,4]")),
    ]


@pytest.mark.adr("0150-D6")
def test_a_search_finds_the_least_and_goes_on(search: Search, folder: Path) -> None:
    pytest.importorskip("optuna")
    one = ("swept.py", "-s", "n=2", "-p", "log=one.txt", "-j", "1", "-o", "one")
    _, out, _ = search(*one)
    assert "the best, of 1 trial;" in out
    assert (folder / "one.txt").read_text().split() == ["2"]
    space = ("swept.py", "-s", "n=1..6", "-p", "log=ran.txt", "-j", "1")
    status, out, err = search(*space, "--trials", "4")
    assert (status, err) == (0, "")
    tried = [int(line) for line in (folder / "ran.txt").read_text().split()]
    assert len(tried) == len(set(tried)), "a point that has a result is not run again"
    # More bytes to read back take longer: the least n wins.
    assert out.splitlines()[1].split()[0] == str(min(tried))

    status, out, _ = search(*space, "--trials", "8")
    assert "of 6 trials, which are all points" in out
    again = [int(line) for line in (folder / "ran.txt").read_text().split()]
    assert again[: len(tried)] == tried
    assert len(again) == len(set(again))


@pytest.mark.adr("0150-D6")
def test_goals_are_weighed_and_failures_are_left_out(search: Search, folder: Path) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("matplotlib")
    space = ("-s", "n=1,4", "-s", "machine=ahbm,h100-sxm", "-s", "mode=fine,raises", "-j", "1")
    prices = ("--price", "ahbm=1", "--price", "h100-sxm=0.001")
    goals = ("--minimize", "time", "--minimize", "cost", "--minimize", "memory")
    status, out, _ = search(
        "swept.py", *space, *goals, *prices, "--trials", "16", "--plot", "a.svg"
    )
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split()[-3:] == ["time", "cost", "memory"]
    rows = [line.split() for line in lines[1 : lines.index("")]]
    assert {row[2] for row in rows} == {"fine"}
    assert {row[0] for row in rows} == {"1"}, "four times the bytes are worse in all goals"
    assert "failed" in lines[-1]
    assert (folder / "a.svg").read_text().startswith("<?xml")


def test_a_search_of_failures_alone_says_why_one_failed(search: Search) -> None:
    pytest.importorskip("optuna")
    status, _, err = search("swept.py", "-s", "mode=raises", "-j", "1", "--trials", "1")
    assert status == 1
    assert "none of 1 trials is done" in err
    assert "ValueError" in err


@pytest.mark.adr("0160-D4")
def test_energy_and_the_machines_own_price_are_goals(search: Search, folder: Path) -> None:
    pytest.importorskip("optuna")
    space = ("-s", "n=1,4", "-s", "machine=a100-sxm-80g,h100-sxm", "-j", "1")
    goals = ("--minimize", "energy", "--minimize", "cost")
    status, out, err = search("swept.py", *space, *goals, "--trials", "8")
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0].split()[-2:] == ["energy", "cost"]
    rows = [line.split() for line in lines[1 : lines.index("")]]
    assert {row[0] for row in rows} == {"1"}, "four times the work takes more of both"
    assert all(row[-2].endswith("J") for row in rows)


@pytest.mark.slow
@pytest.mark.adr("0150-D6")
def test_a_killed_search_goes_on(search: Search, folder: Path) -> None:
    pytest.importorskip("optuna")
    space = ("swept.py", "-s", "n=1..100", "-p", "log=ran.txt", "-p", "pause_s=0.3", "-j", "1")
    command = [sys.executable, "-m", "kernbench", "search", *space]
    going = subprocess.Popen(command, stderr=subprocess.PIPE)
    points = folder / "sweeps/swept/points"
    while len(list(points.glob("*.json"))) < 2:
        assert going.poll() is None
        time.sleep(0.02)
    going.send_signal(signal.SIGKILL)
    going.communicate(timeout=30)
    kept = len(list(points.glob("*.json")))
    status, out, _ = search(*space, "--trials", str(kept + 2))
    assert status == 0
    assert f"of {kept + 2} trials" in out
    assert len(list(points.glob("*.json"))) <= kept + 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the space is empty"),
        (("-s", "n"), "--space must be NAME=A,B,C or NAME=LOW..HIGH"),
        (("-s", "n=5..1"), "the range 5..1 has no values"),
        (("-s", "n=a..b"), "a range must be LOW..HIGH"),
        (("-s", "n=1,2", "-s", "n=3"), "the space has n twice"),
        (("-s", "m=1,2"), "bench swept has no parameter 'm'"),
        (("-s", "n=1,2", "-p", "n=1"), "n has a space and a fixed value"),
        (("-s", "n=1,2", "--minimize", "tim"), "--minimize tim: did you mean time"),
        (("-s", "n=1,2", "--minimize", "cost"), "the cost of ahbm is not known"),
        (("-s", "n=1,2", "--price", "ahbm=much"), "--price must be MACHINE=NUMBER"),
    ],
)
def test_wrong_input_is_said(search: Search, arguments: tuple[str, ...], said: str) -> None:
    status, out, err = search("swept.py", *arguments)
    assert (status, out) == (2, "")
    assert said in err


def test_the_same_goal_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        Goals(names=("time", "time"), prices={})
