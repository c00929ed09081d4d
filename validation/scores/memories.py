"""Peaks of memory that sources of training runs report, beside those of the programs run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.accuracy.rows import Category, Row, is_apart
from kernbench.accuracy.score import Scored

_SAID = re.compile(r"memory (\d+(?:\.\d+)?) ?(GiB|GB)")
_ASSUMED = "not printed"
"""What a note says of a size that its source leaves open: the peak is of no known program then."""
_FULL = "CUDA out of memory"
_GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One run's peak, in GiB. Frameworks of PyTorch's say GB and count in 2**30."""

    row: Row
    measured: float
    modeled: float
    apart: bool


def peaks_of(scored: Sequence[Scored]) -> list[Peak]:
    """Return the peaks of rows whose notes say one, and whose programs, all known, were run."""
    return [
        Peak(
            row=item.row,
            measured=float(said.group(1)),
            modeled=item.answer.peak_bytes / _GIB,
            apart=is_apart(item.row),
        )
        for item in scored
        if (said := _SAID.search(note := item.row.fields.get("note", "")))
        and item.answer.peak_bytes
        and _ASSUMED not in note
    ]


def fitting(scored: Sequence[Scored]) -> tuple[int, int]:
    """Return how many published programs were run to their end here, or out of memory."""
    programs = [item.answer for item in scored if item.row.category is Category.PROGRAMS]
    ended = sum(program.time_us is not None for program in programs)
    return ended, sum(program.why_not.startswith(_FULL) for program in programs)
