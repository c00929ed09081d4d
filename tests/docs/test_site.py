"""The site that ``make docs`` builds, as far as it can be told without Sphinx."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "api").glob("*.rst"))
DIRECTIVE = re.compile(r"^\.\. auto(?:module|class|exception|function):: (?P<name>[\w.]+)", re.M)


def found(name: str) -> Any:
    """Return the object of a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_documents_exists_and_has_a_docstring(page: Path) -> None:
    names = DIRECTIVE.findall(page.read_text(encoding="utf-8"))
    assert names
    for name in names:
        assert found(name).__doc__, name


def test_the_table_of_contents_is_the_links_of_the_index() -> None:
    contents = runpy.run_path(str(ROOT / "tools" / "site" / "conf.py"))["contents"]
    index = "# All\n[R](../README.md)\n## Guides\n- [A](a.md): x\n- [B](api/b.rst#c)\n- [A](a.md)\n"
    assert contents(index) == (
        "```{toctree}\n:hidden:\n\n../README\n```\n\n"
        "```{toctree}\n:hidden:\n:caption: Guides\n\na\napi/b\n```"
    )


def test_every_option_of_the_command_line_is_on_its_page() -> None:
    site = runpy.run_path(str(ROOT / "tools" / "site" / "conf.py"))
    page = site["command_line"]()
    assert "## `kernbench run`" in page
    assert "### `kernbench machine schema`" in page
    assert "`--nproc-per-node" in page
