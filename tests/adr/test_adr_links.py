"""Every live decision has a test, and every mark names a live decision.

The marks are read from the source of the tests, not from the collected run, so that the check
holds whichever part of the suite is being run.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.adr.trees import tree

ROOT = Path(__file__).parents[2]
DECISION = re.compile(r"^(?:[-*] )?\*\*(D[0-9]+(?:\.[0-9]+)*)\*\*", re.MULTILINE)
FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
SECTIONS = ("Context", "Decision", "Consequences", "Confirmation")


def adr_files() -> list[Path]:
    return sorted((ROOT / "adr").glob("[0-9]*.md"))


def front_matter(path: Path) -> dict[str, str]:
    result = FRONT_MATTER.match(path.read_text())
    assert result, f"{path.name} has no front matter"
    return dict(line.split(": ", 1) for line in result[1].splitlines())


def live_decisions() -> set[str]:
    return {
        f"{path.name[:4]}-{decision}"
        for path in adr_files()
        if front_matter(path)["status"] == "accepted"
        for decision in DECISION.findall(path.read_text())
    }


def adr_marks(tree: ast.AST) -> Iterator[str]:
    """Yield the arguments of every ``pytest.mark.adr(...)`` in a module."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "adr"
        ):
            yield from (str(arg.value) for arg in node.args if isinstance(arg, ast.Constant))


@cache
def texts() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}


@cache
def marks() -> dict[Path, Counter[str]]:
    return {path: Counter(adr_marks(tree(path))) for path in texts()}


def test_every_live_decision_has_a_test() -> None:
    untested = live_decisions().difference(*marks().values())
    assert not untested, f"no test is marked with {sorted(untested)}"


def is_of_campaigns(function: ast.FunctionDef) -> bool:
    """Return whether campaigns alone run a test, whatever its parameters."""
    return any(ast.unparse(item) == "pytest.mark.campaign" for item in function.decorator_list)


@pytest.mark.adr("0263-D3")
def test_every_live_decision_has_a_test_of_every_day() -> None:
    daily: set[str] = set()
    for path, own in marks().items():
        campaigns = [
            node
            for node in tree(path).body
            if isinstance(node, ast.FunctionDef) and is_of_campaigns(node)
        ]
        of_campaigns = Counter(mark for campaign in campaigns for mark in adr_marks(campaign))
        daily |= (own - of_campaigns).keys()
    assert live_decisions() <= daily


def test_every_mark_names_a_live_decision() -> None:
    live = live_decisions()
    unknown = [f"{path.name}: {mark}" for path in marks() for mark in marks()[path].keys() - live]
    assert not unknown, f"these marks name no live decision: {unknown}"


def test_an_adr_is_complete_and_fits_a_page() -> None:
    defined = set(re.findall(r"\btest_\w+", "\n".join(texts().values())))
    for path in adr_files():
        text = path.read_text()
        assert front_matter(path).keys() >= {"status", "date", "supersedes"}, path.name
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert [h for h in headings if h in SECTIONS] == list(SECTIONS), path.name
        assert DECISION.findall(text), f"{path.name}: an ADR decides something, as **D1**"
        assert len(text.splitlines()) <= 120, path.name
        missing = set(re.findall(r"`(test_\w+)`", text)) - defined
        assert not missing, f"the Confirmation of {path.name} names tests that do not exist"
