"""Names in the pages about the code, and in docstrings, are names of things that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adr.trees import ROOT
from tests.docs.code_names import PACKAGE, names

PAGES = [ROOT / "docs" / name for name in ("architecture.md", "glossary.md")]
MADE = re.compile(r"<!-- house: .*?<!-- end of the house -->", re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"[A-Za-z_][\w.]*")
PATH = re.compile(r"[\w./*-]*(?:/|\.(?:py|md|yaml|toml))[\w./-]*")


def spans(page: Path) -> Iterator[str]:
    """Yield what stands in backticks, but for what tools/house.py writes and tests hold."""
    text = MADE.sub("", page.read_text(encoding="utf-8"))
    yield from dict.fromkeys(SPAN.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_pages_about_the_code_name_exists(page: Path) -> None:
    pytest.importorskip("torch")
    checked, missing = 0, []
    for span in spans(page):
        if PATH.fullmatch(span):
            result = any((place / span).exists() for place in (ROOT, PACKAGE))
        elif NAME.fullmatch(span):
            result = names().has(span)
        else:
            # Not a name: an example of code, or a command.
            continue
        checked += 1
        if not result:
            missing.append(span)
    assert not missing, f"{page.name} names what is not there (any more): {missing}"
    assert checked > 50


def test_words_of_the_glossary_are_in_alphabetical_order_and_each_in_one_line() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines()[4:] if line]
    matches = [re.fullmatch(r"- \*\*([^*]+)\*\*( \([^)]*\))?: \S.*", line) for line in lines]
    assert not [line for line, item in zip(lines, matches, strict=True) if item is None]
    words = [item[1].lower() + (item[2] or "") for item in matches if item is not None]
    assert words == sorted(set(words))
