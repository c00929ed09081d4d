"""Pages lead to each other: all are in the index, links have an end, `make` targets exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "adr" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
TARGET = re.compile(r"`make (?P<name>[\w-]+)")


def links(page: Path) -> list[tuple[Path, str]]:
    """Return the files that a page links to, and the anchors in them."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    targets = [result["target"] for result in LINK.finditer(text)]
    parts = [target.partition("#") for target in targets if "://" not in target]
    return [((page.parent / file).resolve() if file else page, anchor) for file, _, anchor in parts]


def anchors(page: Path) -> set[str]:
    """Return what headings of a page are called in links, as GitHub and mkdocs have it."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index_once() -> None:
    linked = sorted(file for file, _ in links(DOCS / "index.md") if file.is_relative_to(DOCS))
    pages = {*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")}
    assert linked == sorted(pages - {DOCS / "index.md"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_an_end(page: Path) -> None:
    for file, anchor in links(page):
        assert file.exists(), f"{page.name} links to {file}"
        assert not anchor or anchor in anchors(file), f"{file.name} has no heading for #{anchor}"


def test_make_targets_that_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    there = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    named = {
        result["name"]
        for page in PAGES
        for result in TARGET.finditer(page.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= there
