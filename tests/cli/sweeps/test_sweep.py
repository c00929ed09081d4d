from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernbench import RuntimeContext
from tests.cli.sweeps.conftest import Sweep

KERNBENCH = [sys.executable, "-m", "kernbench"]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def ran(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def time_of(n: int, machine: str) -> Any:
    with RuntimeContext(machine=machine, ranks=1, data=True) as torch:
        torch.zeros(1024 * n, dtype="f32").numpy()
    return torch.report()["time_ns"]


@pytest.mark.adr("0150-D1")
@pytest.mark.adr("0150-D4")
def test_a_point_runs_once_and_is_what_a_run_gives(sweep: Sweep, folder: Path) -> None:
    grid = ("-g", "n=1,2", "-g", "machine=ahbm,h100-sxm", "-p", "log=ran.txt")
    status, out, err = sweep("swept.py", *grid, "--table", "a.csv")
    assert (status, err) == (0, "")
    assert "4 points: 4 done, 4 of them run now" in out
    expected = [(n, machine) for n in (1, 2) for machine in ("ahbm", "h100-sxm")]
    rows = rows_of(folder / "a.csv")
    assert [(int(row["n"]), row["machine"]) for row in rows] == expected
    assert [float(row["time_ns"]) for row in rows] == [time_of(*item) for item in expected]
    assert Counter(ran(folder / "ran.txt")) == {1: 2, 2: 2}

    # Other words for known points, and one that is new.
    status, out, _ = sweep("swept.py", "-g", "n=0x1,2,3", "--machine", "ahbm", *grid[4:])
    assert "3 points: 3 done, 1 of them run now" in out
    assert Counter(ran(folder / "ran.txt")) == {1: 2, 2: 2, 3: 1}
    # With nothing left to run, an engine must exist all the same.
    status, _, err = sweep("swept.py", *grid, "--engine", "slurm")
    assert (status, err.startswith("error: no engine 'slurm'")) == (2, True)

    # Another program makes other points; so does another machine under the same name.
    program = folder / "swept.py"
    program.write_text(program.read_text().replace('"ran"', '"RAN"'))
    _, out, _ = sweep("swept.py", *grid, "--list")
    assert "4 points: 0 done, 4 pending" in out
    assert len(ran(folder / "ran.txt")) == 5


def test_narrow_consoles_wrap_axes_and_no_times(
    sweep: Sweep, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    _, out, _ = sweep("swept.py", "-g", "n=1", "-g", "sip.cube.hbm_bandwidth_gbps=1000")
    assert "…" not in out
    assert "us  done" in out
    assert "\n1 point: 1 done, 1 of them run now" in out


@pytest.mark.adr("0150-D2")
def test_failures_are_rows_and_run_again_when_asked_or_given_more(
    sweep: Sweep, folder: Path
) -> None:
    grid = ("swept.py", "-g", "mode=fine,raises,killed,exits,waits,grows", "-p", "log=ran.txt")
    limits = ("--timeout", "5", "--memory", "1GB", "-j", "3")
    status, out, _ = sweep(*grid, *limits, "--table", "a.csv")
    assert status == 1
    assert sweep(*grid, *limits, "--list")[0] == 0
    rows = {row["mode"]: row for row in rows_of(folder / "a.csv")}
    states = {mode: row["status"] for mode, row in rows.items()}
    assert states == {
        "fine": "done",
        "raises": "failed",
        "killed": "crashed",
        "exits": "crashed",
        "waits": "timeout",
        "grows": "memory",
    }
    assert rows["raises"]["error"].startswith("ValueError: no 1 today\n  swept.py:")
    assert rows["killed"]["error"] == "its process was ended by SIGKILL"
    assert rows["exits"]["error"] == "its process exited with 3"
    assert 1000 <= float(rows["grows"]["peak_mb"]) < 3000
    assert "1 done, 5 failed" in out
    files = list((folder / "sweeps/swept/points").glob("*.json"))
    outputs = [json.loads(file.read_text().splitlines()[0]).get("output") for file in files]
    assert [output for output in outputs if output is not None] == ["ran 1\n"] * 5

    sweep(*grid, *limits, "--table", "a.csv")
    assert len(ran(folder / "ran.txt")) == 6
    # Who was ended at 5 s may not do so with less, but may with more.
    sweep(*grid, "--timeout", "3", "--memory", "1GB")
    assert len(ran(folder / "ran.txt")) == 6
    _, out, _ = sweep(*grid, "--timeout", "5.5", "--memory", "1GB", "--retry-failed", "-j", "3")
    assert "6 points: 1 done, 5 failed, 5 of them run now" in out
    assert len(ran(folder / "ran.txt")) == 11


@pytest.mark.slow
@pytest.mark.adr("0150-D3")
def test_a_killed_sweep_goes_on_where_it_was(sweep: Sweep, folder: Path) -> None:
    grid = ["sweep", "swept.py", "-g", f"n={','.join(map(str, range(1, 7)))}"]
    grid += ["-p", "log=ran.txt", "-p", "pause_s=0.2"]
    points = folder / "sweeps/swept/points"
    for number in (signal.SIGKILL, signal.SIGINT):
        before = len(list(points.glob("*.json")))
        going = subprocess.Popen([*KERNBENCH, *grid], stderr=subprocess.PIPE, text=True)
        while len(list(points.glob("*.json"))) < before + 2:
            assert going.poll() is None, going.stderr
            time.sleep(0.02)
        going.send_signal(number)
        _, said = going.communicate(timeout=30)
    kept = len(list(points.glob("*.json")))
    assert going.returncode == 130
    assert said == (
        f"interrupted\n  {kept} of 6 results are kept in sweeps/swept; the same command goes on\n"
    )
    finished = {
        json.loads(path.read_text().partition("\n")[0])["values"]["n"]
        for path in points.glob("*.json")
    }
    runs = Counter(ran(folder / "ran.txt"))
    (folder / "ran.txt").unlink()
    status, out, _ = sweep(*grid[1:])
    assert status == 0
    assert f"6 points: 6 done, {6 - kept} of them run now" in out
    assert sorted(ran(folder / "ran.txt")) == sorted({*range(1, 7)} - {int(n) for n in finished})
    assert all(runs[int(n)] >= 1 for n in finished)
    assert not [path for path in points.iterdir() if path.suffix != ".json"]


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0150-D3")
def test_sweeps_side_by_side_and_shards_run_no_point_twice(sweep: Sweep, folder: Path) -> None:
    numbers = range(1, 7)
    grid = ["swept.py", "-g", f"n={','.join(map(str, numbers))}", "-p", "log=ran.txt"]
    grid += ["-p", "pause_s=0.05"]
    shard = subprocess.Popen([*KERNBENCH, "sweep", *grid, "--shard", "2/3", "-j", "1"])
    whole = subprocess.Popen([*KERNBENCH, "sweep", *grid, "-j", "2"])
    assert (shard.wait(300), whole.wait(300)) == (0, 0)
    assert sorted(ran(folder / "ran.txt")) == list(numbers)
    _, out, _ = sweep(*grid, "--shard", "2/3")
    assert "2 points: 2 done" in out
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["2", "5"]


def test_a_study_is_a_file_and_the_command_line_adds_to_it(sweep: Sweep, folder: Path) -> None:
    (folder / "study.yaml").write_text(
        "program: swept.py\nmachine: h100-sxm\nparams: {pause_s: 0}\n"
        "grid: {n: [1, 2]}\npoints: [{n: 7, sip.host_launch_us: 3}]\n"
    )
    _, out, _ = sweep("study.yaml", "-g", "ranks=1,2", "--list", "--table", "a.csv")
    rows = rows_of(folder / "a.csv")
    assert [(row["n"], row["ranks"], row["sip.host_launch_us"]) for row in rows] == [
        ("1", "1", ""),
        ("1", "2", ""),
        ("2", "1", ""),
        ("2", "2", ""),
        ("7", "1", "3"),
    ]
    assert {row["machine"] for row in rows} == {"h100-sxm"}
    assert "5 points: 0 done, 5 pending" in out


def test_a_study_may_be_json(sweep: Sweep, folder: Path) -> None:
    study = {"program": "swept.py", "grid": {"n": [1, 2]}}
    (folder / "study.json").write_text(json.dumps(study, indent="\t"))
    status, out, _ = sweep("study.json", "--list")
    assert (status, "2 points: 0 done, 2 pending" in out) == (0, True)
    (folder / "study.json").write_text('{"program": "swept.py", "program": "other.py"}')
    status, _, err = sweep("study.json", "--list")
    assert (status, "program" in err, "study.json" in err) == (2, True, True)


def test_axes_of_the_machine_take_factors_as_set_does(sweep: Sweep, folder: Path) -> None:
    axis = "sip.host_launch_us=1x,0.5x,4"
    sweep("swept.py", "-g", axis, "--list", "--table", "a.csv")
    sweep("swept.py", "-g", "sip.host_launch_us=2,1,4", "--list", "--table", "b.csv")
    factors, values = (rows_of(folder / name) for name in ("a.csv", "b.csv"))
    assert [row["key"] for row in factors] == [row["key"] for row in values]
    status, _, err = sweep("swept.py", "-g", "sip.host_lunch_us=1x")
    assert status == 2
    assert "did you mean sip.host_launch_us (2)" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the grid has no points; give axes"),
        (("-g", "n="), "the grid has no points: n has no values"),
        (("-g", "n=1,1"), "the axis n has 1 twice"),
        (("-g", "n=1", "-g", "n=2"), "the grid has the axis n twice"),
        (("-g", "n=1", "-p", "n=2"), "n has a grid and a fixed value"),
        (("-g", "m=1"), "bench swept has no parameter 'm'"),
        (("-g", "n=many"), "parameter n of bench swept must be int, but got 'many'"),
        (("-g", "ranks=0"), "ranks must be a positive integer"),
        (("-g", "machine=h1000"), "unknown machine 'h1000'"),
        (("-g", "sip.nothing=1"), "sip.nothing"),
        (("-g", "n=1", "--shard", "0/4"), "--shard must be from 1/N to N/N"),
        (("-g", "n=1", "--shard", "2/4"), "fewer points than shards"),
        (("-g", "n=1", "--memory", "much"), "--memory must be like 2GB"),
        (("-g", "n=1", "--engine", "slurm"), "no engine 'slurm'; known: local, dask://"),
        (("-g", "n=1", "--table", "a.xlsx"), "must end in .parquet or .csv"),
        (("-g", "n=1", "-o", "swept.py"), "is a file; name a folder"),
        (("-g", "n=1", "-o", "."), "holds other things than the results of a sweep"),
        (("-g", "n=1", "-o", "newer"), "written by another version of kernbench"),
        (("-g", "n=1", "-o", "others"), "has results of gemm.py, not of swept.py"),
        (("-g", "n=1", "-o", "foreign"), "is not what a sweep has written"),
    ],
)
def test_wrong_input_is_said_before_anything_runs(
    sweep: Sweep, folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    for name, text in {
        "newer": '{"format": "kernbench sweep 9", "program": "swept.py"}',
        "others": '{"format": "kernbench sweep 1", "program": "gemm.py"}',
        "foreign": "[1, 2",
    }.items():
        (folder / name).mkdir()
        (folder / name / "sweep.json").write_text(text)
    status, out, err = sweep("swept.py", *arguments, "-p", "log=ran.txt")
    assert (status, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert not (folder / "ran.txt").exists()


def test_a_damaged_result_is_named(sweep: Sweep, folder: Path) -> None:
    sweep("swept.py", "-g", "n=1")
    (file,) = (folder / "sweeps/swept/points").glob("*.json")
    file.write_bytes(file.read_bytes()[:40])
    status, _, err = sweep("swept.py", "-g", "n=1")
    assert status == 2
    assert f"{file.relative_to(folder)} is no result of a sweep; remove it" in err


@pytest.mark.campaign
def test_a_full_disk_ends_a_sweep_and_names_what_is_kept(
    sweep: Sweep, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, calls = os.fsync, []

    def full(file: int) -> None:
        calls.append(file)
        if len(calls) > 2:  # the manifest and a result
            raise OSError(28, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", full)
    status, _, err = sweep("swept.py", "-g", "n=1,2,3", "-j", "1")
    assert status == 2
    assert "No space left on device; 1 of 3 results are kept in sweeps/swept" in err
    monkeypatch.undo()
    os.chdir(folder)
    _, out, _ = sweep("swept.py", "-g", "n=1,2,3", "-j", "1")
    assert "3 done, 2 of them run now" in out


@pytest.mark.campaign
@pytest.mark.slow
def test_a_closed_pipe_loses_nothing(sweep: Sweep, folder: Path) -> None:
    sweep("swept.py", "-g", "n=1,2")
    command = (
        f"{' '.join(KERNBENCH)} sweep swept.py -g n=1,2 --table a.csv | true; exit $PIPESTATUS"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(rows_of(folder / "a.csv")) == 2


def test_a_plot_shows_what_is_done(sweep: Sweep, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("swept.py", "-g", "n=1,4,16", "-g", "machine=ahbm,h100-sxm", "--plot", "a.svg")
    assert sweep(*arguments)[0] == 0
    picture = (folder / "a.svg").read_text()
    assert picture.startswith("<?xml")
    status, _, err = sweep(*arguments, "--metric", "tim")
    assert status == 2
    assert "--metric tim: no such column of numbers; did you mean time_ns?" in err
