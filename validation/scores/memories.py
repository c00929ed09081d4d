"""Peaks of memory that sources of training runs report, beside those of the programs run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.accuracy.rows import Row, is_apart
from kernbench.accuracy.score import Scored

_SAID = re.compile(r"memory (\d+(?:\.\d+)?) ?(GiB|GB)")
_GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One run's peak, in GiB. Frameworks of PyTorch's say GB and count in 2**30."""

    row: Row
    measured: float
    modeled: float
    apart: bool


def peaks_of(scored: Sequence[Scored]) -> list[Peak]:
    """Return the peaks of rows whose notes say one, and whose programs were run."""
    return [
        Peak(
            row=each.row,
            measured=float(said.group(1)),
            modeled=each.answer.peak_bytes / _GIB,
            apart=is_apart(each.row),
        )
        for each in scored
        if (said := _SAID.search(each.row.fields.get("note", ""))) and each.answer.peak_bytes
    ]
