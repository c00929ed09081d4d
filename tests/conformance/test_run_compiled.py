"""The campaign of compiled operations: a case that differs, fails or ends its process is found."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.conformance import run_compiled
from tests.conformance.report import Outcome
from tests.forked import COMPILER, run_forked

torch = pytest.importorskip("torch")


def test_after_a_process_that_ended_the_next_one_goes_on_behind_its_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = ["m::b[0]", "failed", "the process ended"]
    of_processes = [
        [
            ["m::a[0]", "failed", "the process ended"],
            ["m::a[0]", "passed", ""],
            ["m::a[1]", "failed", "the process ended"],
            ["m::a[1]", "no case", "autocast changes nothing"],
            ["end", "a", ""],
            ended,
        ],
        [["m::c[0]", "skipped", "why"], ["end", "c", ""], ["all", "", ""]],
    ]
    asked = []

    def run_once(numbers: list[int], path: Path, folder: Path) -> str:
        asked.append(numbers)
        path.write_text("\n".join(map(json.dumps, of_processes[len(asked) - 1])))
        return ""

    monkeypatch.setattr(run_compiled, "run_once", run_once)
    result = run_compiled.run(4, 1, tmp_path)
    assert asked == [[4, 1, 0], [4, 1, 2]]
    assert result == {
        "m::a[0]": Outcome("passed", ""),
        "m::b[0]": Outcome("failed", "the process ended"),
        "m::c[0]": Outcome("skipped", "why"),
    }


def test_a_program_that_never_begins_ends_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_compiled, "run_once", lambda *args: "no such machine")
    with pytest.raises(SystemExit, match="no such machine"):
        run_compiled.run(1, 0, tmp_path)


@pytest.mark.parametrize("arguments", [["--every", "0"], ["--first", "1"], ["--first", "-1"]])
def test_a_share_that_is_none_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        run_compiled.main(arguments)
    assert refused.value.code == 2


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(run_compiled.PROGRAM.parent))
    return importlib.import_module(run_compiled.PROGRAM.stem)


def test_results_that_differ_are_found(program: ModuleType) -> None:
    ones = torch.ones(3)
    for other in (ones + 1e-3, ones.double(), ones[:2], torch.tensor([1, 1, float("nan")])):
        assert program.different(other, ones, 1e-4)
    assert program.different([ones, 1], [ones, 2], 1e-4)
    assert program.different(torch.tensor([True]), torch.tensor([False]), 1e-4)
    assert not program.different([ones + 1e-5, 2], [ones, 2], 1e-4)


@pytest.mark.campaign
@pytest.mark.slow
def test_one_operation_passes_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(numbers: list[int], path: Path, folder: Path) -> str:
        """Run the program as the campaign does, where the compiler is imported."""
        command, environment = run_compiled.command_of(numbers, path, folder)
        return run_forked(*command[2:], env=environment, imports=COMPILER).stderr

    monkeypatch.setattr(run_compiled, "run_once", run_once)
    result = run_compiled.run(100_000, 2, tmp_path)
    assert {item.outcome for item in result.values()} == {"passed"}
    assert any("forward" in case for case in result)
