"""The HTML file: styles, scripts, libraries and data of a page in one, without a network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any, BinaryIO

from kernbench.page.contents import contents

if TYPE_CHECKING:
    from kernbench.analysis import RunPart
    from kernbench.saved import SavedRun

_LIBRARIES = ("d3", "plot.umd")
_SCRIPTS = (
    "basics", "unpack", "colors", "tables", "charts", "roofline", "matrix", "kernels", "memory",
    "energy", "serving", "lanes", "drawing", "timeline", "page",
)  # fmt: skip
"""In the order in which they use each other."""


def dump_page(
    out: BinaryIO,
    run: SavedRun,
    before: SavedRun | None = None,
    findings: Mapping[str, Any] | None = None,
    part: RunPart | None = None,
) -> None:
    """Write the page of a run to an open file.

    The same runs give the same bytes.

    Args:
        out: Where to.
        run: The run.
        before: Another one; the page then says what changed since that.
        findings: What ``retiming.findings`` returned for the run, if they are to be shown.
        part: The part of the run that is shown first; None: the steady step, if it has steps.
    """
    out.write(_document(contents(run, before, findings, part)).encode())


def _document(result: dict[str, Any]) -> str:
    about = result["about"]
    libraries = [_asset(f"vendor/{name}.min.js") for name in _LIBRARIES]
    own = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    scripts = [*libraries, f'"use strict";\n(() => {{\n{own}\n}})();\n']
    licenses = "\n".join(_asset(f"vendor/{name}.LICENSE") for name in ("d3", "plot"))
    # Nothing may be loaded, and nothing may run but these scripts, whatever names say.
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {' '.join(map(_hash, scripts))}"
    )
    title = f"{about['program'] or about['path']} on {about['ranks']} ranks of {about['machine']}"
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n",
            f"<body>\n{_asset('page.html')}",
            f'<script type="application/json" id="data">{_json(result)}</script>\n',
            f"<!-- The libraries d3 and Observable Plot:\n{licenses}-->\n",
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def _json(result: dict[str, Any]) -> str:
    """Return JSON that ends no element of HTML, whatever texts are in it."""
    text = json.dumps(result, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _asset(name: str) -> str:
    return (resources.files("kernbench.page") / "assets" / name).read_text(encoding="utf-8")
