"""Question: what does a sweep cost beside its points, and how long does a listing take?

60 points of ``tiny_bench.py``, a kernel or three without data, on one server of this machine: the
time of the sweep, less what the points themselves took, which is measured inside each. Then 10,000
points that all have a result are listed and written as a table, as ``kernbench sweep --list`` does.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter

from conftest import Goal
from kernbench.cli.sweeps.engines import engine, run_job
from kernbench.cli.sweeps.points import Settings, SweptBench
from kernbench.cli.sweeps.running import Limits, Progress, run_points
from kernbench.cli.sweeps.store import ResultFolder
from kernbench.cli.sweeps.study import Study
from kernbench.cli.sweeps.table import flat, write_table

BENCH = str(Path(__file__).with_name("tiny_bench.py"))
POINTS, LISTED = 60, 10_000


def study(points: int) -> Study:
    axes = {"n": list(map(str, range(points)))}
    return Study(program=BENCH, settings=Settings(data=False), axes=axes)


def test_a_sweep_beside_its_points(tmp_path: Path, goal: Goal) -> None:
    asked = study(POINTS)
    points = asked.points(SweptBench(BENCH, asked.settings))
    store = ResultFolder(tmp_path / "sweep", "tiny_bench.py")
    with engine("local", 1) as local:
        run_job(points[0].job)  # starts the server
        begun_s = perf_counter()
        run_points(points, frozenset(), store, local, Limits(), Progress(total=POINTS))
        took_s = perf_counter() - begun_s
    rows = store.rows(points).values()
    assert [row["status"] for row in rows] == ["done"] * POINTS
    own_s = sum(row["wall_s"] for row in rows)
    goal("sweep, per point beside the point", (took_s - own_s) / POINTS * 1e3, 50, " ms")


def test_a_listing_of_many_points(tmp_path: Path, goal: Goal) -> None:
    asked = study(LISTED)
    program = SweptBench(BENCH, asked.settings)
    store = ResultFolder(tmp_path / "sweep", "tiny_bench.py")
    points = asked.points(program)
    with engine("local", 1) as local:
        run_points(points[:1], frozenset(), store, local, Limits(), Progress(total=1))
    row, report = store.row(points[0].key), store.report(points[0].key)
    for point in points[1:]:
        text = f"{json.dumps({**(row or {}), 'key': point.key})}\n{json.dumps(report)}\n"
        store.path_of(point.key).write_text(text)

    begun_s = perf_counter()
    points = asked.points(SweptBench(BENCH, asked.settings))
    rows = store.rows(points)
    listed = [flat(point, rows.get(point.key)) for point in points]
    write_table(listed, str(tmp_path / "results.parquet"))
    took_s = perf_counter() - begun_s
    assert [item["status"] for item in listed] == ["done"] * LISTED
    goal(f"sweep, {LISTED:,} points listed", took_s, 2, " s")
