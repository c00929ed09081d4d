"""Goodput: the closed form, and histories of failures as its oracle."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from statistics import mean, stdev

import pytest

from kernbench.cli.plans.goodput import Failing
from tests.cli.command_line import kernbench

DAY_S = 24 * 3600.0


@pytest.mark.adr("0176-D7")
@pytest.mark.parametrize(
    ("mtbf_s", "checkpoint_s", "restart_s", "interval_s"),
    [
        (11_000, 60, 300, 1_100),
        (11_000, 60, 300, 7_000),
        (2_000, 200, 600, 800),
        (600, 400, 300, 500),
        (50_000, 5, 0, 700),
    ],
)
def test_histories_go_as_the_closed_form_says(
    mtbf_s: float, checkpoint_s: float, restart_s: float, interval_s: float
) -> None:
    failing = Failing(mtbf_s=mtbf_s, checkpoint_s=checkpoint_s, restart_s=restart_s)
    random = Random(1)
    # Long enough that what is in progress at the end counts for little.
    result = [failing.simulated(interval_s, 60 * DAY_S, random) for _ in range(60)]
    error = stdev(result) / len(result) ** 0.5
    assert mean(result) == pytest.approx(failing.goodput(interval_s), abs=4 * error + 5e-4)


def test_a_run_that_never_fails_loses_its_checkpoints_alone() -> None:
    failing = Failing(mtbf_s=1e12, checkpoint_s=20, restart_s=300)
    assert failing.goodput(80) == pytest.approx(0.8)
    assert failing.simulated(80, 1e6, Random(0)) == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize(("mtbf_s", "checkpoint_s"), [(11_000, 60), (1_000, 300), (100, 150)])
def test_no_other_interval_is_better_than_the_best(mtbf_s: float, checkpoint_s: float) -> None:
    failing = Failing(mtbf_s=mtbf_s, checkpoint_s=checkpoint_s, restart_s=100)
    best_s = failing.best_s()
    for factor in (0.8, 0.99, 1.01, 1.2):
        assert failing.goodput(best_s * factor) < failing.goodput(best_s)
    assert failing.daly_s() == pytest.approx(best_s, rel=0.06)


def test_estimates_agree_where_checkpoints_are_short() -> None:
    failing = Failing(mtbf_s=1e6, checkpoint_s=1, restart_s=0)
    assert failing.young_s() == pytest.approx(failing.best_s(), rel=2e-3)


def test_the_command_takes_storage_from_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stored.yaml").write_text(
        "name: stored\nbase: h100-sxm\nstorage: {node_gbps: 5, filesystem_gbps: 240}\n"
    )
    options = ("--checkpoint-gb", "4800", "--machine", "stored.yaml", "--histories", "20")

    def checkpoint_s(devices: int) -> float:
        result = kernbench("goodput", "--devices", str(devices), *options, "--json", "out.json")
        assert result.exit_code == 0, result.output
        seconds: float = json.loads(Path("out.json").read_text())["checkpoint_s"]
        return seconds

    assert checkpoint_s(64) == 4800 / (8 * 5)
    assert checkpoint_s(1024) == 4800 / 240
    assert checkpoint_s(8) == 4800 / 5


def test_a_seed_gives_the_same_histories() -> None:
    texts = [
        kernbench("goodput", "--devices", "512", "--checkpoint-s", "9", "--seed", seed).output
        for seed in ("1", "1", "2")
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--devices", "8"], "either --checkpoint-s SECONDS or --checkpoint-gb GB"),
        (["--checkpoint-s", "3"], "--devices N, or a RUN"),
        (["--devices", "8", "--checkpoint-s", "0"], "--checkpoint-s must be above 0, but got 0"),
        (
            ["--devices", "8", "--checkpoint-s", "nan"],
            "must be above 0, but got nan",
        ),
        (
            ["--devices", "8", "--checkpoint-s", "1", "--restart-s", "-1"],
            "must be 0 or more",
        ),
        (["--devices", "8", "--checkpoint-s", "1", "--mtbf-hours", "0"], "--mtbf-hours must be"),
        (["--devices", "8", "--checkpoint-gb", "1"], "--checkpoint-gb needs --machine NAME"),
        (
            ["--devices", "8", "--checkpoint-gb", "1", "--machine", "h100-sxm"],
            "machine h100-sxm has no storage",
        ),
        (["no-such-run", "--checkpoint-s", "1"], "no-such-run: cannot be read as a saved run"),
    ],
)
def test_what_is_missing_or_impossible_is_said(options: list[str], says: str) -> None:
    result = kernbench("goodput", *options)
    assert result.exit_code == 2
    assert says in result.output
