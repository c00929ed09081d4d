"""Pages of what the model knows: each has its four parts, and no error that goes stale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "model"
PARTS = ["Mechanism", "Where its numbers are from", "What it does not know", "Its error today"]


def parts(page: Path) -> dict[str, str]:
    """Return what stands under each heading of a page."""
    _, *rest = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(rest[::2], rest[1::2], strict=True))


PAGES = pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)


@pytest.mark.adr("0237-D1")
@PAGES
def test_a_page_of_the_model_has_its_four_parts(page: Path) -> None:
    assert list(parts(page)) == PARTS
    assert all(text.strip() for text in parts(page).values())


@pytest.mark.adr("0237-D2")
@PAGES
def test_a_page_of_the_model_names_its_error_and_copies_none(page: Path) -> None:
    error = parts(page)["Its error today"]
    assert "](../validation.md" in error
    assert not re.search(r"\d %", error)
