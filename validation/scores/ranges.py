"""Ranges in which measured times are around modeled ones, and how many rows are in them (ADR-0250).

A row is of the kind of kernels that its time is mostly of; the range of a kind is that of four of
five of its rows, of sources that had no part in any fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernbench.accuracy.rows import Category, Machines, Row, part_of
from kernbench.accuracy.score import Scored
from kernbench.report import ELSEWHERE, HOST, Ranges, likenesses, range_of
from validation.scores.fits import numbers_for

CONFIDENCE = 0.8
_OUTSIDE = 0.9
"""The share of rows in the range of what is unlike them: another machine, or another kind."""
_LEAST_ROWS = 20
"""Fewer rows have no range of their own."""
_MOSTLY = 0.5
_FOLDS = 5
_WIDE = frozenset({"bf16", "bfloat16", "fp16", "float16", "fp32", "tf32"})


def family_of_row(row: Row) -> str:
    """Return the family of kernels that a row's error is of, as reports of runs name it."""
    if "quant_dtype" in row.fields:
        return "quantize"
    if row.category is Category.GEMM and row.dtype not in _WIDE:
        return "narrow gemm"
    return row.category.value


@dataclass(frozen=True, slots=True)
class Observation:
    """A row of a source that had no part in fits: measured over modeled time, and what it is of."""

    source: str
    fold: int
    like: Sequence[str]
    """Whose ranges it is in: its machine, its machine's maker, all (``likenesses``)."""
    shares: Mapping[str, float]
    ratio: float

    @property
    def machine(self) -> str:
        """Return the name of its machine."""
        return self.like[0]

    @property
    def kind(self) -> str:
        """Return what the time is mostly of; empty where it is of several kinds."""
        kind, share = max(self.shares.items(), key=lambda pair: pair[1])
        return kind if share >= _MOSTLY * sum(self.shares.values()) else ""


def observations(scored: Sequence[Scored], machines: Machines) -> list[Observation]:
    """Return the answered rows of sources that had no part in a fit of what their machine has.

    Whole programs of which nobody kept what their time is of are left out.
    """
    result = []
    for item in scored:
        time_us, row = item.answer.time_us, item.row
        shares = item.answer.shares
        if row.category is not Category.PROGRAMS:
            shares = {family_of_row(row): 1.0}
        if not time_us or not shares:
            continue
        machine = machines.machine_of(row.device)
        if not numbers_for(row.source, machine):
            like = likenesses(machine)
            fold = part_of(row, _FOLDS)
            result.append(Observation(row.source, fold, like, shares, row.time_us / time_us))
    return result


def ranges_of(rows: Iterable[Observation]) -> Ranges:
    """Return the ranges by machine and kind; of many machines, and of all kinds, wider ones."""
    observations: dict[str, dict[str, list[Observation]]] = {ELSEWHERE: {ELSEWHERE: []}}
    for row in rows:
        observations[ELSEWHERE][ELSEWHERE].append(row)
        if row.kind:
            for like in row.like:
                observations.setdefault(like, {}).setdefault(row.kind, []).append(row)
    return {
        machine: {
            kind: _range(of, _OUTSIDE if machine.endswith(ELSEWHERE) else CONFIDENCE)
            for kind, of in sorted(kinds.items())
            if kind == ELSEWHERE or (len(of) >= _LEAST_ROWS and _are_enough(machine, kind, of))
        }
        for machine, kinds in sorted(observations.items())
    }


def _are_enough(machine: str, kind: str, rows: Sequence[Observation]) -> bool:
    """Return whether rows are of more than one source's host, where the kind is the host.

    Boards of a name are alike; their hosts are whatever their owners have: programs of one source
    on one host say nothing of another's.
    """
    is_general = machine.endswith(ELSEWHERE) or kind != HOST
    return is_general or len({row.source for row in rows}) > 1


def _range(rows: Sequence[Observation], share: float) -> tuple[int, float, float]:
    """Return how many rows there are, and between what multiples a share of them is.

    Machines count alike, however many rows they have: another one is like none of them.
    """
    if len(rows) < _LEAST_ROWS:
        return len(rows), 0.5, 2.0
    by_machine = Counter(row.machine for row in rows)
    ordered = sorted(rows, key=lambda observation: observation.ratio)
    weights = np.array([1 / by_machine[item.machine] for item in ordered])
    places = np.cumsum(weights) - weights / 2
    places = (places - places[0]) / (places[-1] - places[0])
    ends = ((1 - share) / 2, (1 + share) / 2)
    low, high = np.interp(ends, places, [item.ratio for item in ordered])
    return len(rows), round(float(low), 3), round(float(high), 3)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many rows of a kind on a machine are in ranges that were made without them."""

    kind: str
    machine: str
    rows: int
    inside: int
    width: float
    """The median of the upper end over the lower one."""


def coverage_of(rows: Sequence[Observation]) -> list[Coverage]:
    """Return, by kind and machine, how many rows are in ranges that they had no part in.

    Ranges are made of other sources' rows where those have enough of the kind. Where a source is
    the only one, they are made of its other whole programs, by folds.
    """
    flags: dict[tuple[str, str], list[tuple[bool, float]]] = {}
    parts = {(row.source, row.fold) for row in rows}
    for source, fold in parts:
        others = ranges_of(row for row in rows if (row.source, row.fold) != (source, fold))
        foreign = ranges_of(row for row in rows if row.source != source)
        for row in rows:
            if (row.source, row.fold) != (source, fold):
                continue
            is_foreign = row.kind in foreign.get(row.machine, {})
            time_range = range_of(1.0, row.shares, row.like, foreign if is_foreign else others)
            assert time_range is not None
            low, high = time_range["low_ns"], time_range["high_ns"]
            key = row.kind or "several kinds", row.machine
            flags.setdefault(key, []).append((low <= row.ratio <= high, high / low))
    return [
        Coverage(kind, machine, len(of), sum(inside for inside, _ in of),
                 float(np.median([width for _, width in of])))
        for (kind, machine), of in sorted(flags.items())
    ]  # fmt: skip
