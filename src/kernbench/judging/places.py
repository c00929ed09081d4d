"""Files and lines that errors name, and at which kernels store."""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(r"\bat (\S+\.py:\d+)")


def line_in(text: str) -> str:
    """Return the first file and line that a message names; empty if none."""
    match = _LINE.search(text)
    return match[1] if match else ""


def store_line(ttir: str) -> str:
    """Return where a kernel stores last, as ``file:line``; empty if its text does not say."""
    stores = re.findall(r"tt\.(?:store|atomic_rmw|descriptor_store)\b.*loc\((#loc\d*)\)", ttir)
    places = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", ttir, re.MULTILINE))
    place = places.get(stores[-1], "") if stores else ""
    for _ in range(8):
        match = re.search(r'"([^"]+\.py)":(\d+)', place)
        if match:
            return f"{Path(match[1]).name}:{match[2]}"
        inner = re.search(r"#loc\d*", place)
        place = places.get(inner[0], "") if inner else ""
    return ""
