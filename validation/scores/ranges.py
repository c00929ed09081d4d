"""Ranges in which measured times are around modeled ones, and how many rows are in them (ADR-0250).

A row is of the kind of kernels that its time is mostly of; the range of a kind is that of four of
five of its rows, of sources that had no part in any fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernbench.accuracy.rows import Category, Machines, Row, part_of
from kernbench.accuracy.score import Scored
from kernbench.library_kernels import CUTLASS, DEEPGEMM, MARLIN
from kernbench.report import ELSEWHERE, HOST, UNKNOWN, Ranges, likenesses, range_of
from validation.scores.fits import numbers_for

CONFIDENCE = 0.8
_LEAST_PROGRAMS = 9
"""Of fewer no range holds so many: what is new is beyond all of n in 2 of n + 1 cases."""
_DEVIATIONS = 1.2816
"""Of a normal law, from its mean to the end of such a range."""
_MOSTLY = 0.5
_FOLDS = 5
_PROGRAMS = 2**31
"""Numbers of programs, by a hash of what they are."""
_EXPERTS = tuple(f"{tiles.name}_" for tiles in (CUTLASS, DEEPGEMM, MARLIN))
_WIDE = frozenset({"bf16", "bfloat16", "fp16", "float16", "fp32", "tf32"})


def family_of_row(row: Row, kernels: str = "") -> str:
    """Return the family of kernels that a row's error is of, as reports of runs name it.

    Attention ``kernels`` that carry the name of the row's stack are launched by no program, and
    other experts' products than ``_EXPERTS``.
    """
    if row.category is Category.ATTENTION and f"{row.fields.get('framework')}_" in kernels:
        return "attention of stacks"
    if row.category is Category.MOE and not any(
        name.startswith(_EXPERTS) for name in kernels.split(" + ")
    ):
        return "moe of stacks"
    if "quant_dtype" in row.fields:
        return "quantize"
    if row.category is Category.GEMM and row.dtype not in _WIDE:
        return "narrow gemm"
    return row.category.value


@dataclass(frozen=True, slots=True)
class Observation:
    """An answered row: measured over modeled time, and what it is of."""

    source: str
    program: int
    """The number of its program, shape or curve; of several rows of one the errors are alike."""
    like: Sequence[str]
    """Whose ranges it is in: its machine, its machine's maker, all (``likenesses``)."""
    shares: Mapping[str, float]
    ratio: float
    seen: bool = False
    """Whether its source had a part in a fit of what its machine has."""

    @property
    def fold(self) -> int:
        """Return in which part of its source it is."""
        return self.program % _FOLDS

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
    """Return the answered rows.

    Whole programs of which nobody kept what their time is of are left out.
    """
    result = []
    for item in scored:
        time_us, row = item.answer.time_us, item.row
        shares = item.answer.shares
        if row.category is not Category.PROGRAMS:
            shares = {family_of_row(row, item.answer.how): 1.0}
        if not time_us or not shares:
            continue
        machine = machines.machine_of(row.device)
        result.append(
            Observation(
                row.source, part_of(row, _PROGRAMS), likenesses(machine), shares,
                row.time_us / time_us, numbers_for(row.source, machine) > 0,
            )
        )  # fmt: skip
    return result


def ranges_of(rows: Iterable[Observation], seen: Spreads | None = None) -> Ranges:
    """Return the ranges by machine and kind, and of many machines and of all kinds (ADR-0287).

    ``seen`` are the spreads of what fits have seen, where they are known; else those of ``rows``.
    """
    rows = list(rows)
    if seen is None:
        seen = _spreads([row for row in rows if row.seen])
    rows = [row for row in rows if not row.seen]
    between = _between([row for row in rows if row.kind])
    result: dict[str, dict[str, tuple[int, float, float]]] = {ELSEWHERE: {}}
    for machine, kinds in sorted(_spreads(rows).items()):
        result[machine] = {
            kind: spread.widened(2 * sum(between[: spread.level + 1]) / spread.count)
            for kind, spread in sorted(kinds.items())
        }
    known = set(result[ELSEWHERE])
    for machine, kinds in sorted(seen.items()):
        of_seen = result.setdefault(machine, {})
        for kind, spread in kinds.items():
            if kind not in known and kind != ELSEWHERE:
                # What sources and machines differ by is what fits took out.
                of_seen[kind] = spread.widened(sum(between[: spread.level + 1]))
    result[ELSEWHERE].setdefault(ELSEWHERE, UNKNOWN)
    return result


@dataclass(frozen=True, slots=True)
class _Spread:
    """The ends of 80 % of rows, as logarithms of ratios."""

    rows: int
    low: float
    high: float
    level: int
    """0: of one kind on one machine; 1: of one kind; 2: of all kinds."""
    count: int
    """Sources, machines or kinds, by the level."""

    def widened(self, variance: float) -> tuple[int, float, float]:
        """Return the rows, and the ends as ratios with more variance."""
        half = math.hypot((self.high - self.low) / 2, _DEVIATIONS * math.sqrt(variance))
        middle = (self.low + self.high) / 2
        return self.rows, round(math.exp(middle - half), 3), round(math.exp(middle + half), 3)


Spreads = dict[str, dict[str, _Spread]]


def _spreads(rows: Iterable[Observation]) -> Spreads:
    """Return the spreads of rows by machine and kind, where there are enough programs."""
    observations: dict[str, dict[str, list[Observation]]] = {ELSEWHERE: {ELSEWHERE: []}}
    for row in rows:
        observations[ELSEWHERE][ELSEWHERE].append(row)
        if row.kind:
            for like in row.like:
                observations.setdefault(like, {}).setdefault(row.kind, []).append(row)
    result: Spreads = {}
    for machine, kinds in observations.items():
        for kind, of in kinds.items():
            spread = _spread(of, machine.endswith(ELSEWHERE) + (kind == ELSEWHERE))
            if spread is not None and _are_enough(machine, kind, of):
                result.setdefault(machine, {})[kind] = spread
    return result


def _are_enough(machine: str, kind: str, rows: Sequence[Observation]) -> bool:
    """Return whether rows are of more than one source's host, where the kind is the host.

    Boards of a name are alike; their hosts are whatever their owners have: programs of one source
    on one host say nothing of another's.
    """
    is_general = machine.endswith(ELSEWHERE) or kind != HOST
    return is_general or len({row.source for row in rows}) > 1


_Estimate = tuple[float, float]
"""A mean, and the variance that it has as a mean of so few."""


def _between(rows: Iterable[Observation]) -> list[float]:
    """Return the variances of logarithms of ratios between sources, machines and kinds.

    Each is of means over what is below it, programs first, whose own variance is left out.
    """
    programs: dict[tuple[str, ...], dict[int, list[float]]] = {}
    for row in rows:
        of = programs.setdefault((row.kind, row.machine, row.source), {})
        of.setdefault(row.program, []).append(math.log(row.ratio))
    known: dict[tuple[str, ...], _Estimate] = {}
    for key, logs in programs.items():
        averages = [float(np.mean(of)) for of in logs.values()]
        if len(averages) > 2:
            known[key] = float(np.mean(averages)), float(np.var(averages, ddof=1)) / len(averages)
    variances: list[float] = []
    for level in (2, 1, 0):
        groups: dict[tuple[str, ...], list[_Estimate]] = {}
        for key, estimate in known.items():
            groups.setdefault(key[:level], []).append(estimate)
        variances.append(_pooled(list(groups.values())))
        known = {}
        for key, estimates in groups.items():
            means, own = np.array(estimates).T
            known[key] = float(means.mean()), float(own.mean() + variances[-1]) / len(means)
    return variances


def _pooled(groups: Sequence[Sequence[_Estimate]]) -> float:
    """Return the variance of what was estimated within groups, at least 0."""
    degrees = sum(len(of) - 1 for of in groups)
    excess = sum(
        float(np.var(means, ddof=1) - np.mean(own)) * (len(means) - 1)
        for means, own in (zip(*of, strict=True) for of in groups if len(of) > 1)
    )
    return max(excess / degrees, 0.0) if degrees else 0.0


def _spread(rows: Sequence[Observation], level: int) -> _Spread | None:
    """Return between what multiples rows are, with ``CONFIDENCE``; None for too few programs.

    At level 0 they are of one kind on one machine, of any source; at 1 of any machine; at 2 of any
    kind. What they are of counts alike, and so do sources on each machine, their programs, and the
    rows of each. One more of n is beside the mean of n, and not in their spread, by 2 / n of the
    variance between them.
    """
    logs: dict[str, dict[tuple[str, str], dict[int, list[float]]]] = {}
    for row in rows:
        by_source = logs.setdefault((row.machine, row.machine, row.kind)[level], {})
        of = by_source.setdefault((row.machine, row.source), {})
        of.setdefault(row.program, []).append(math.log(row.ratio))
    sources = [of for by_source in logs.values() for of in by_source.values()]
    programs = sum(map(len, sources))
    if programs < _LEAST_PROGRAMS:
        return None
    points = sorted(
        (log, 1 / (len(by_source) * len(of) * len(values)))
        for by_source in logs.values()
        for of in by_source.values()
        for values in of.values()
        for log in values
    )
    values, weights = np.array(points).T
    weights *= programs / weights.sum()
    places = (np.cumsum(weights) - weights / 2 + 0.5) / (programs + 1)
    low, high = np.interp(((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), places, values)
    count = len(logs) if level else len(sources)
    return _Spread(len(rows), float(low), float(high), level, count)


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
    seen = _spreads([row for row in rows if row.seen])
    rows = [row for row in rows if not row.seen]
    for source in {row.source for row in rows}:
        foreign = ranges_of([row for row in rows if row.source != source], seen)
        for fold in {row.fold for row in rows if row.source == source}:
            own = [row for row in rows if (row.source, row.fold) == (source, fold)]
            others = foreign
            if any(row.kind not in foreign.get(row.machine, {}) for row in own):
                others = ranges_of(
                    [row for row in rows if (row.source, row.fold) != (source, fold)], seen
                )
            for row in own:
                is_foreign = row.kind in foreign.get(row.machine, {})
                known = foreign if is_foreign else others
                time_range = range_of(1.0, row.shares, row.like, known)
                assert time_range is not None
                low, high = time_range["low_ns"], time_range["high_ns"]
                key = row.kind or "several kinds", row.machine
                flags.setdefault(key, []).append((low <= row.ratio <= high, high / low))
    return [
        Coverage(kind, machine, len(of), sum(inside for inside, _ in of),
                 float(np.median([width for _, width in of])))
        for (kind, machine), of in sorted(flags.items())
    ]  # fmt: skip
