"""Which sources had a part in constants: those that a number's own words say it was fitted to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import kernbench
from kernbench.hardware import Machine
from kernbench.report import likenesses
from validation.kernels import FOLDER as LIBRARIES
from validation.sources.tables import FOLDER

_OTHER_NAMES = {
    "nccl_perf": ("aic-nccl", "aic-nccl-2"),
    "custom_allreduce_perf": ("aic-custom-ar", "aic-custom-ar-2"),
    "NVLS tables": ("mleng-nvls",),
}
"""How files name sources otherwise than rows do."""


@cache
def _texts() -> tuple[tuple[str, str], ...]:
    """Return what every number in a file of data says that it was fitted to, and where it counts.

    That is a machine or a family of kernels by its name; empty: everywhere.
    """
    shipped = Path(kernbench.__path__[0])
    files = [*shipped.rglob("*.yaml"), *LIBRARIES.rglob("*.yaml"), *FOLDER.glob("*.yaml")]
    data = ((path, yaml.safe_load(path.read_text("utf-8"))) for path in files)
    return tuple((_place(path, of), text) for path, of in data for text in _said(of))


def _place(path: Path, data: Any) -> str:
    folder = path.parent
    if folder.name == "presets":
        # Rows of a cluster are of the machine that its nodes are of.
        return data.get("base", path.stem) if "clusters" in data else path.stem
    return folder.name if folder.parent.name == "kernel_libraries" else ""


def _said(data: Any) -> Iterator[str]:
    if isinstance(data, dict) and "fitted_to" in data:
        # An entry of a table: it is of the source's own rows.
        if not data["fitted_to"].startswith("nothing"):
            yield f"{data.get('source', '')} {data['fitted_to']}"
    elif isinstance(data, dict | list):
        for item in data.values() if isinstance(data, dict) else data:
            yield from _said(item)
    elif isinstance(data, str) and "fitted" in data and "not fitted" not in data:
        yield data


@cache
def numbers_fitted(source: str, machine: str, kernels: str) -> int:
    """Return how many numbers name a source as what they were fitted to.

    Counted are those of a machine and of its family of kernels, by their names, and those that hold
    for all machines.
    """
    names = (source, *(name for name, of in _OTHER_NAMES.items() if source in of))
    pattern = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names))
    places = {"", machine, kernels}
    return sum(place in places and bool(pattern.search(text)) for place, text in _texts())


def numbers_for(source: str, machine: Machine) -> int:
    """Return how many numbers that a machine's times rest on were fitted to a source."""
    return numbers_fitted(source, likenesses(machine)[0], machine.spec.kernel_library or "")
