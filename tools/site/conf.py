"""How Sphinx makes the site of docs/ and of the docstrings: ``make docs`` builds it.

Two things are made while it reads, so that they stay true: the table of contents is the list of
links in docs/index.md, and the page of the command line is what Typer says about it. A page that
index.md does not link to is an error, as every warning is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

project = "kernbench"
author = "The kernbench engineers"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
# Options start with two dashes, also in running text.
smartquotes = False
html_theme = "furo"
html_title = "kernbench"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# The modules that define what a package exports are not part of its interface.
add_module_names = False
napoleon_use_rtype = False
myst_heading_anchors = 3
# Output and fragments of programs stand in fences of every kind.
suppress_warnings = ["misc.highlighting_failure"]

include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "adr/*.md", "docs/**"]
root_doc = "docs/index"
_FRONT_MATTER = re.compile(r"\A---\n(?P<matter>.*?\n)---\n\s*(?P<title># .*\n)", re.DOTALL)
_SECTION = re.compile(r"^## (?P<caption>.+)$|\]\((?P<page>[\w./-]+)\.(?:md|rst)[)#]", re.MULTILINE)


def contents(index: str) -> str:
    """Return the table of contents, one part for each heading of an index, as MyST."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for result in _SECTION.finditer(index):
        if result["caption"]:
            parts.append((result["caption"], []))
        elif not any(result["page"] in pages for _, pages in parts):
            parts[-1][1].append(result["page"])
    blocks = []
    for caption, pages in parts:
        if pages:
            head = [":hidden:", *([f":caption: {caption}"] if caption else [])]
            blocks.append("\n".join(["```{toctree}", *head, "", *pages, "```"]))
    return "\n\n".join(blocks)


def command_line() -> str:
    """Return what Typer says about every command, as Markdown."""
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "typer",
            "kernbench.cli.app",
            "utils",
            "docs",
            "--name",
            "kernbench",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout


def _read(_app: Any, page: str, source: list[str]) -> None:
    if page in (root_doc, "adr/README"):
        source[0] += f"\n\n{contents(source[0])}\n"
    elif page == "docs/api/command-line":
        source[0] = command_line()
    elif page.startswith("adr/"):
        # Shown, as GitHub shows it; to MyST it would be settings of its own.
        source[0] = _FRONT_MATTER.sub(r"\g<title>\n```yaml\n\g<matter>```\n", source[0])


def _keep_colons(_app: Any, what: str, *rest: Any) -> None:
    """Keep Napoleon from taking what stands before a colon for the type of an attribute.

    Types are in annotations. An empty comment comes first, which has no colon.
    """
    if what in ("attribute", "property", "data"):
        lines: list[str] = rest[-1]
        lines[:0] = ["..", ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _keep_colons, priority=100)
    app.connect("source-read", _read)
