"""Which sources had a part in constants: those that a number's own words say it was fitted to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import kernbench
from validation.sources.tables import FOLDER

_OTHER_NAMES = {
    "nccl_perf": ("aic-nccl", "aic-nccl-2"),
    "custom_allreduce_perf": ("aic-custom-ar", "aic-custom-ar-2"),
    "NVLS tables": ("mleng-nvls",),
}
"""How files name sources otherwise than rows do."""


@cache
def _texts() -> tuple[str, ...]:
    """Return what every number in a file of data says that it was fitted to."""
    files = [*Path(kernbench.__path__[0]).rglob("*.yaml"), *FOLDER.glob("*.yaml")]
    return tuple(text for path in files for text in _said(yaml.safe_load(path.read_text("utf-8"))))


def _said(data: Any) -> Iterator[str]:
    if isinstance(data, dict) and "fitted_to" in data:
        # An entry of a table: it is of the source's own rows.
        if not data["fitted_to"].startswith("nothing"):
            yield f"{data.get('source', '')} {data['fitted_to']}"
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from _said(each)
    elif isinstance(data, str) and "fitted" in data and "not fitted" not in data:
        yield data


def constants_by_source(sources: Iterable[str]) -> Counter[str]:
    """Return how many numbers (or groups of them) name each source as what they were fitted to."""
    found: Counter[str] = Counter()
    for source in sources:
        names = (source, *(name for name, of in _OTHER_NAMES.items() if source in of))
        pattern = re.compile("|".join(rf"(?<![\w-]){re.escape(each)}(?![\w-])" for each in names))
        found[source] = sum(bool(pattern.search(text)) for text in _texts())
    return found
