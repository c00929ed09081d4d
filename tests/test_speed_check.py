"""What ``make bench-check`` calls slower, and what the benches write down."""

from __future__ import annotations

import importlib.util
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

HOST = Path(__file__).parents[1] / "benches" / "host"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("speed_check", HOST / "speed_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "speed_check", module)
    spec.loader.exec_module(module)
    return module


def baseline(check: Any, **cases: Any) -> Any:
    return check.Baseline("abc1234", "2026-11-23", "3.11", cases)


@pytest.mark.adr("0061-D7")
@pytest.mark.parametrize(
    ("now", "python", "times"),
    [
        ((2.9, 1000), "3.11", None),
        ((4.0, 1000), "3.11", "2.00"),
        ((2.0, 2100), "3.11", "2.10"),
        ((2.0, 2100), "3.12", None),
        ((0.5, 100), "3.11", None),
    ],
    ids=["in the margin", "time", "bytecodes", "bytecodes of another Python", "faster"],
)
def test_a_case_beyond_the_margin_is_named_with_its_factor_and_commit(
    check: Any, now: tuple[float, int], python: str, times: str | None
) -> None:
    kept = baseline(check, launches=check.Measured(2.0, 1000), other=check.Measured(1.0))
    result = {"launches": check.Measured(*now), "other": check.Measured(1.0)}
    lines = check.complaints(result, kept, python)
    if times is None:
        assert lines == []
    else:
        (line,) = lines
        assert line.startswith(f"launches: {times} times as slow as at abc1234 (2.00x")


@pytest.mark.adr("0061-D7")
def test_a_case_without_a_baseline_and_a_baseline_without_a_case_are_named(check: Any) -> None:
    kept = baseline(check, old=check.Measured(1.0), absent=check.Measured(1.0))
    lines = check.complaints({"new": check.Measured(1.0)}, kept, "3.11", skipped=["absent"])
    assert [line.partition(":")[0] for line in lines] == ["new", "old"]


@pytest.mark.adr("0061-D7")
def test_what_seems_slower_is_measured_again_and_the_best_counts(check: Any) -> None:
    kept = check.Measured(1.0, 100)
    noisy = iter([check.Measured(4.0, 100), check.Measured(1.2, 101)])
    assert check.measure(lambda: next(noisy), kept, True) == check.Measured(1.2, 100)
    assert next(noisy, None) is None
    slow = iter([check.Measured(4.0, 100), check.Measured(3.0, 100), check.Measured(3.5, 100)])
    assert check.is_slower(check.measure(lambda: next(slow), kept, True), kept, True)
    once = iter([check.Measured(1.1, 100)])
    assert check.measure(lambda: next(once), kept, True).ratio == 1.1
    new = iter([check.Measured(1.1), check.Measured(1.0), check.Measured(1.3)])
    assert check.measure(lambda: next(new), None, True).ratio == 1.0


def test_a_baseline_is_read_as_it_was_written(check: Any) -> None:
    kept = baseline(check, a=check.Measured(1.25, 7), b=check.Measured(0.5))
    assert check.Baseline.from_json(kept.to_json()) == kept


def test_every_case_has_a_baseline(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HOST)
    monkeypatch.delitem(sys.modules, "short_cases", raising=False)
    cases = importlib.import_module("short_cases")
    del sys.modules["short_cases"]
    kept = check.Baseline.from_json(check.BASELINE.read_text())
    assert {*cases.CASES, *cases.UNAVAILABLE} == {*kept.cases}
    assert not kept.commit.endswith("+")


@pytest.mark.adr("0061-D8")
def test_a_table_says_of_which_commit_day_and_machine_it_is(
    check: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(HOST)
    results = importlib.import_module("results")
    del sys.modules["results"]
    rows = [
        results.Row("warm launch", 9.9, 100, " us", False),
        results.Row("ranks", 8, 10, "", True),
    ]
    text = results.page(rows, ["bench_torch.py: no torch"], ("abc1234", "2026-11-20"))
    assert "commit `abc1234` of 2026-11-20, on " in text
    assert datetime.now(UTC).date().isoformat() in text
    assert "| warm launch | 9.90 us  | at most 100 us | yes     |" in text
    assert "| ranks       | 8.00     | at least 10.0  | no      |" in text
    assert "bench_torch.py: no torch" in text


_RUNS: list[int] = []


def count_runs(measured: Any) -> Any:
    _RUNS.append(os.getpid())
    return measured(len(_RUNS), os.getpid())


@pytest.mark.adr("0061-D7")
def test_each_case_has_a_process_that_knows_nothing_of_others(check: Any) -> None:
    checks = [check.apart(count_runs, check.Measured) for _ in range(2)]
    assert [item.ratio for item in checks] == [1, 1]
    assert os.getpid() not in {item.bytecodes for item in checks}
    assert not _RUNS
