"""What docstrings and pages refer to exists: records of decisions, decisions in them, symbols."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adr.test_adr_links import adr_files
from tests.adr.trees import ROOT, code, docstrings, facts, tree
from tests.docs.code_names import names

TREES = ("src", "tests", "tools", "benches", "docs", "adr", "changelog.d")
KINDS = {".py", ".md", ".toml", ".yaml"}
DECISION = re.compile(r"D\d+(?:\.\d+)*")
DECIDED = re.compile(rf"^(?:[-*] )?\*\*({DECISION.pattern})\*\*", re.MULTILINE)
GONE = re.compile(rf"^({DECISION.pattern}), .*is superseded by ADR-\d{{4}}\.$", re.MULTILINE)
"""A superseded decision leaves a pointer in its record, which older texts may name."""
REFERENCE = re.compile(
    rf"ADR-(?P<number>\d{{4}})(?P<decisions>(?:(?:,| and| or| to)? {DECISION.pattern})*)"
)
ROLE = re.compile(r":(?:py:)?(?:func|mod|class|meth|data|attr|exc|obj|const):`~?(?P<name>[^`]*)`")
DOTTED = re.compile(r"(?<![\w.-])kernbench(?:\.\w+)+")
FILES_OF_OURS = re.compile(r"kernbench\.(?:py|md|yaml|toml|json|parquet)")


def files() -> list[Path]:
    below = [path for tree in TREES for path in (ROOT / tree).rglob("*")]
    beside = [*ROOT.glob("*.md"), *ROOT.glob("*.py"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    return sorted(
        path
        for path in [*below, *beside]
        if path.is_file() and (path.suffix in KINDS or path in beside)
    )


def place(path: Path, text: str, at: int) -> str:
    return f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, at) + 1}"


def wrong_records(path: Path, text: str, known: dict[str, set[str]]) -> Iterator[str]:
    """Yield each reference to a record that is not there, or to a decision that is not in it."""
    for result in REFERENCE.finditer(text):
        decisions = known.get(result["number"])
        where = place(path, text, result.start())
        if decisions is None:
            yield f"{where} {result[0]}: no such record"
        else:
            for item in set(DECISION.findall(result["decisions"])) - decisions:
                yield f"{where} {result[0]}: the record has no {item}"


def records() -> dict[str, set[str]]:
    texts = {path.name[:4]: path.read_text(encoding="utf-8") for path in adr_files()}
    return {number: {*DECIDED.findall(text), *GONE.findall(text)} for number, text in texts.items()}


def test_references_to_decisions_lead_to_one() -> None:
    known = records()
    texts = {path: path.read_text(encoding="utf-8") for path in files()}
    wrong = [
        wrong_record
        for path, text in texts.items()
        for wrong_record in wrong_records(path, text, known)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text", ["see ADR" + "-0016", "ADR" + "-0003 D1 and D9", "ADR" + "-0042 D27"]
)
def test_a_reference_to_nothing_is_found(text: str) -> None:
    assert len(list(wrong_records(ROOT / "README.md", text, records()))) == 1


def wrong_symbols(text: str, owner: str) -> Iterator[str]:
    """Yield each symbol that a docstring of a class, or of none, names and that is not there."""
    for result in ROLE.finditer(text):
        name = result["name"].removesuffix("()")
        if not (names().has(name) or (owner and names().has_member(owner, name))):
            yield result[0]
    for answer in DOTTED.finditer(ROLE.sub("", text)):
        if not FILES_OF_OURS.fullmatch(answer[0]) and not names().has(answer[0]):
            yield answer[0]


def test_symbols_in_docstrings_exist() -> None:
    pytest.importorskip("torch")
    own = {path: facts(path).docstrings for path in code("src/kernbench")}
    strings = own | {path: list(docstrings(tree(path))) for path in code("tests")}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {wrong_symbol}"
        for path in strings
        for text, line, owner in strings[path]
        for wrong_symbol in wrong_symbols(text, owner)
    ]
    assert not wrong, "\n".join(wrong)


def test_symbols_in_pages_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "adr").glob("*.md")]
    wrong = [
        f"{page.relative_to(ROOT)} {wrong_symbol}"
        for page in pages
        for wrong_symbol in wrong_symbols(page.read_text(encoding="utf-8"), "")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        (":func:`~kernbench.replay.walk_kernel`", ""),
        (":meth:`steer`", "Simulation"),
        (":mod:`kernbench.sim_engine`", ""),
        ("as kernbench.runtime_api.nothing says", ""),
    ],
)
def test_a_symbol_that_is_not_there_is_found(text: str, owner: str) -> None:
    assert len(list(wrong_symbols(text, owner))) == 1


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        (":func:`~kernbench.replay.run_kernel`", ""),
        (":meth:`sleep`", "Simulation"),
        (":mod:`kernbench.clock`", ""),
        ("the machine of kernbench.yaml", ""),
    ],
)
def test_a_symbol_that_is_there_is_not_complained_about(text: str, owner: str) -> None:
    assert not list(wrong_symbols(text, owner))
