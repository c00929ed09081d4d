"""Question: what does keeping a run cost, and how soon is it explained, or done again?

80 layers of the TP MLP on 64 ranks of ahbm without data, by the command, in CPU seconds of this
process: the run with ``--save`` over the run without it, medians of alternating repetitions; then
``kernbench why``, ``kernbench retime`` over the run, and the sizes of its timelines.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from time import process_time

import pytest
from typer.testing import CliRunner

from conftest import Goal
from kernbench.cli.app import app
from tests.page.browser import MISSING, browser

RUN = ("run", "tp_mlp", "--machine", "ahbm:64", "--ranks", "64", "--no-data", "-p", "iterations=80")
REPETITIONS = 5
MEGABYTE = 1e6
FIRST_PICTURE = """
    while (!document.documentElement.dataset.ready)
        await new Promise((next) => setTimeout(next, 10));
    return performance.getEntriesByName("first-contentful-paint")[0].startTime;
"""


def seconds(*arguments: str) -> float:
    start = process_time()
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return process_time() - start


def test_keeping_and_explaining_a_run(goal: Goal, tmp_path: Path) -> None:
    kept = tmp_path / "kept.run"
    seconds(*RUN, "--save", str(kept))
    plain, saved = zip(
        *[(seconds(*RUN), seconds(*RUN, "--save", str(kept))) for _ in range(REPETITIONS)],
        strict=True,
    )
    print(f"\n  plain {statistics.median(plain):.2f} s, kept {kept.stat().st_size / 1e3:.0f} kB")
    ratio = statistics.median(saved) / statistics.median(plain)
    goal("TP MLP, 80 layers, 64 ranks, --save over a run without it", ratio, 1.25, "x")
    goal("the same, kernbench why, CPU time", seconds("why", str(kept)), 5, " s")
    again = statistics.median(seconds("retime", str(kept)) for _ in range(REPETITIONS))
    goal("the same, kernbench retime over the run", again / statistics.median(plain), 0.5, "x")
    for name, *form in (
        ("trace.json.gz",),
        ("trace.pftrace",),
        ("kineto", "--kineto"),
        ("chakra", "--chakra"),
    ):
        traced = tmp_path / name
        took = seconds("trace", str(kept), str(traced), *form)
        sizes = [path.stat().st_size for path in (traced.iterdir() if form else [traced])]
        print(f"  {name}: {took:.1f} s")
        goal(f"the same, {name}", sum(sizes) / MEGABYTE, 10 if form else 5, " MB")


def test_a_run_as_a_page(goal: Goal, tmp_path: Path) -> None:
    kept, page = tmp_path / "kept.run", tmp_path / "page.html"
    seconds(*RUN, "--save", str(kept))
    goal(
        "kernbench report of that run, CPU time",
        seconds("report", str(kept), "-o", str(page)),
        10,
        " s",
    )
    goal("the same, the page", page.stat().st_size / MEGABYTE, 8, " MB")
    if MISSING:
        pytest.skip(f"when the first picture is there: {MISSING}")
    with browser() as window:
        window.open(page)
        goal("the same, first picture in a browser", window.run(FIRST_PICTURE) / 1000, 2, " s")
