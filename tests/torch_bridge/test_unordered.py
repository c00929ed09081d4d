"""Operations that nothing orders, or that use what nothing wrote: each found, and its twin not.

What each wrong variant does wrong follows from CUDA's rules of streams ("CUDA semantics" and
"non_blocking and pin_memory" of PyTorch's documents); on a device its numbers would be luck.
"""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import DataRaceError, UninitializedReadError  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

FILE = "unordered.py"


def cases() -> list[str]:
    """Return the cases of the program, which are its functions, with their variants."""
    tree = ast.parse((PROGRAMS / FILE).read_text())
    table = next(
        item.value
        for item in tree.body
        if isinstance(item, ast.Assign) and getattr(item.targets[0], "id", "") == "VARIANTS"
    )
    assert isinstance(table, ast.Dict)
    variants = {
        key.id: [str(node.value) for node in ast.walk(value) if isinstance(node, ast.Constant)]
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Name)
    }
    names = [item.name for item in tree.body if isinstance(item, ast.FunctionDef)]
    helpers = {"double", "wait", "on", "ones", "outcome"}
    return [
        f"{name} {variant}".strip()
        for name in names
        if name not in helpers and not name.startswith("_")
        for variant in variants.get(name, [""])
    ]


@cache
def outcomes(check: bool = True, allow: str = "") -> dict[str, Any]:
    """Return what became of each case, by its name and whether it is wrong or right."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        simulated(FILE, path, check=check, allow=allow)
        data: dict[str, Any] = json.loads(path.read_text())
    return {name.strip(): outcome for name, outcome in data.items()}


def is_unwritten(case: str) -> bool:
    return case.startswith(("unwritten", "half_written", "a_columns", "lost"))


def test_there_is_a_case_of_each_kind() -> None:
    assert {f"{case} {kind}" for case in cases() for kind in ("wrong", "right")} == set(outcomes())


@pytest.mark.adr("0228-D1")
@pytest.mark.adr("0228-D2")
@pytest.mark.parametrize("case", [item for item in cases() if not is_unwritten(item)])
def test_what_nothing_orders_is_an_error_with_both_lines(case: str) -> None:
    kind, text = outcomes()[f"{case} wrong"]
    assert kind == DataRaceError.__name__
    # Each of the two operations has a place; kernels have their own line besides.
    assert text.count(f"at {FILE}:") >= 2
    assert "(--allow stream-races)" in text


@pytest.mark.adr("0228-D4")
@pytest.mark.parametrize("case", [item for item in cases() if is_unwritten(item)])
def test_what_nothing_wrote_is_not_computed_with(case: str) -> None:
    kind, text = outcomes()[f"{case} wrong"]
    assert kind == UninitializedReadError.__name__
    lost = "which a replay of another graph of its pool has overwritten"
    assert (lost if case.startswith("lost") else "which nothing has written") in text


@pytest.mark.parametrize("case", cases())
def test_a_right_twin_passes(case: str) -> None:
    assert outcomes()[f"{case} right"] == []


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("consumer_on_the_main_stream", "let the default stream sip0 wait for stream sip0.1"),
        ("freed_while_a_side_stream_reads", "call record_stream()"),
        ("pinned_memory_read_before_its_copy_has_ended item", "call synchronize()"),
        ("waited_for_by_another_stream", "call wait() on its Work"),
    ],
)
def test_an_error_says_which_wait_is_missing(case: str, words: str) -> None:
    assert words in outcomes()[f"{case} wrong"][1]


@pytest.mark.adr("0299-D1")
def test_a_race_of_branches_names_the_lines_of_the_capture() -> None:
    said = outcomes()["a_branch_that_joins_late wrong"][1]
    lines = (PROGRAMS / FILE).read_text().splitlines()
    start = lines.index("def a_branch_that_joins_late():")
    at = {
        text: lines.index(text, start) + 1
        for text in ("        x.mul_(2)", "            y = x + 1")
    }
    assert all(f"at {FILE}:{number}, replayed at" in said for number in at.values())
    assert "let captured stream sip0.1 wait for" in said


@pytest.mark.adr("0299-D2")
def test_replays_of_one_graph_are_ordered_and_what_follows_them_is_not() -> None:
    assert outcomes()["replays_of_a_graph_on_two_streams right"] == []
    assert outcomes()["replays_of_a_graph_on_two_streams wrong"][0] == DataRaceError.__name__


@pytest.mark.adr("0299-D3")
def test_temporaries_of_branches_do_not_share_memory() -> None:
    assert outcomes()["temporaries_of_branches_of_a_graph right"] == []


@pytest.mark.adr("0228-D3")
def test_memory_that_is_freed_is_told_from_memory_that_is_kept() -> None:
    result = outcomes()
    assert "that memory was freed at" in result["freed_in_parts wrong"][1]
    assert "that memory was freed at" not in result["overwritten_while_read wrong"][1]


def test_races_and_unwritten_memory_may_be_allowed() -> None:
    allowed = outcomes(allow="stream-races,uninitialized-reads")
    assert {kind for kind, _ in filter(None, allowed.values())} <= {"AssertionError"}


@pytest.mark.adr("0228-D5")
def test_without_the_check_the_report_names_pinned_memory_that_is_used_too_early() -> None:
    said = {
        wrong: [
            remark
            for make in simulated(
                "used_too_early.py", wrong, machine="h100-sxm", check=False
            ).run.remarks
            for remark in make()
            if "pinned memory" in remark
        ]
        for wrong in ("", "read", "view", "write")
    }
    assert said[""] == []
    assert ["reads pinned memory before the copy" in item for item in said["read"]] == [True]
    assert ["Tensor.numpy at used_too_early.py:33 reads" in item for item in said["view"]] == [True]
    assert ["writes pinned memory before the copy" in item for item in said["write"]] == [True]


@pytest.mark.adr("0229-D1")
@pytest.mark.parametrize("nprocs", [1, 2])
def test_pytorchs_own_sanitizer_finds_its_races_and_no_others(
    nprocs: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_CUDA_SANITIZER", "1")
    simulated("cuda_sanitizer.py", "right", nprocs=nprocs, check=False)
    simulated("cuda_sanitizer.py", "wrong", nprocs=nprocs, check=False)
    assert "CSAN detected a possible data race" in capsys.readouterr().err


def test_a_read_of_elements_that_a_masked_write_left_out_is_found_and_no_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "outcomes.json"
    simulated("parts_unwritten.py", path, check=True)
    outcomes = json.loads(path.read_text())
    for name, error in outcomes.items():
        expected = UninitializedReadError.__name__ if name.startswith("wrong_") else None
        assert error == expected, name
    assert sum(name.startswith("wrong_") for name in outcomes) > 20
    assert sum(name.startswith("right_") for name in outcomes) > 20
