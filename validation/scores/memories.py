"""Peaks of memory that sources of training runs report, beside those composed by kind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernbench.accuracy.rows import Category, Row, is_apart
from kernbench.accuracy.score import Scored
from validation.predictors.clusters import memory_of_row

_SAID = re.compile(r"memory (\d+(?:\.\d+)?) ?(GiB|GB)")
_GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One run's peak, in GiB."""

    row: Row
    measured: float
    kinds: Mapping[str, float]
    apart: bool

    @property
    def composed(self) -> float:
        return sum(self.kinds.values())


def peaks_of(scored: Sequence[Scored]) -> list[Peak]:
    """Return the peaks of rows whose notes say one, and whose runs are described."""
    found = []
    for each in scored:
        row = each.row
        said = _SAID.search(row.fields.get("note", ""))
        if row.category is not Category.PROGRAMS or said is None:
            continue
        kinds = memory_of_row(row)
        if kinds is None:
            continue
        # Frameworks of PyTorch's say GB and count in 2**30.
        gib = {kind: each / _GIB for kind, each in kinds.items()}
        found.append(Peak(row=row, measured=float(said.group(1)), kinds=gib, apart=is_apart(row)))
    return found
