"""Whether the model chooses the right split of a network over devices, and predicts scaling.

A sweep is one source's measurements of one model and batch with several splits (TP x PP x CP x DP).
Three questions are asked of each: which split is fastest, which costs the least device time, and up
to how many devices each device keeps at least 60 % of the throughput that it has in the smallest
split. The naive rule always answers: the most devices, the fewest, the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from statistics import fmean

from kernbench.accuracy.rows import Category, Row
from kernbench.accuracy.score import Scored

TIE = 1.03
"""A choice within this share of the best one's measured value counts as right."""
LEAST_SHARE = 0.6
_AXES = ("tp", "pp", "cp", "dp")
_SAME = ("model", "hidden", "layers", "batch", "seq", "tokens", "input_len", "output_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question about every sweep: how often the model and the naive rule answer it right."""

    name: str
    sweeps: int
    right: int
    naive_right: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """The results of all sweeps.

    Attributes:
        questions: How often the model chooses right.
        splits: How many splits are compared with the smallest of their sweep.
        scaling_points: Their mean error of scaling efficiency, in percentage points.
        scaling_worst: The largest one.
    """

    questions: tuple[Question, ...]
    splits: int
    scaling_points: float
    scaling_worst: float


@dataclass(frozen=True, slots=True)
class _Split:
    """One row of a sweep: its number of devices, and their time, measured and modeled."""

    devices: int
    measured_us: float
    modeled_us: float


def sweeps_of(scored: Iterable[Scored]) -> Sweeps | None:
    """Return the results of the sweeps among the rows, None if there are none."""
    sweeps = _sweeps(scored)
    if not sweeps:
        return None
    off = [
        abs(_share(first, split, True) - _share(first, split, False)) * 100
        for first, *others in sweeps
        for split in others
    ]
    asked: tuple[tuple[str, _Choose, _Choose], ...] = (
        ("fastest split", _fastest, lambda sweep, modeled: len(sweep) - 1),
        ("least device time", _cheapest, lambda sweep, modeled: 0),
        ("most devices at 60 % efficiency", _widest, lambda sweep, modeled: len(sweep) - 1),
    )
    return Sweeps(
        questions=tuple(
            Question(
                name=name,
                sweeps=len(sweeps),
                right=sum(_is_right(sweep, choose, choose) for sweep in sweeps),
                naive_right=sum(_is_right(sweep, choose, naive) for sweep in sweeps),
            )
            for name, choose, naive in asked
        ),
        splits=len(off),
        scaling_points=fmean(off),
        scaling_worst=max(off),
    )


def _sweeps(scored: Iterable[Scored]) -> list[list[_Split]]:
    """Return sweeps of two or more splits, each in order of devices."""
    alike: dict[tuple[str, ...], dict[tuple[int, ...], _Split]] = {}
    for item in scored:
        row, time_us = item.row, item.answer.time_us
        # Slices of TPUs, whose batch grows with them, are no splits of one job.
        if row.category is not Category.TP_SCALING or time_us is None or not row.fields["tp"]:
            continue
        axes = tuple(row.optional(name) or 1 for name in _AXES)
        devices = prod(axes)
        # A rate per device gives device time already.
        shared = devices if row.per else 1
        split = _Split(devices, row.time_us / shared, time_us / shared)
        alike.setdefault(sweep_of(row), {}).setdefault(axes, split)
    return [
        sorted(splits.values(), key=lambda split: split.devices)
        for splits in alike.values()
        if len({split.devices for split in splits.values()}) > 1
    ]


def sweep_of(row: Row) -> tuple[str, ...]:
    """Return what the splits of a sweep have in common."""
    same = [row.fields.get(name, "") for name in _SAME]
    return (row.source, row.device, row.op, row.dtype, row.per, *same)


def _time(split: _Split, modeled: bool) -> float:
    return split.modeled_us if modeled else split.measured_us


def _share(first: _Split, split: _Split, modeled: bool) -> float:
    """Return the throughput of a device relative to one of the smallest split."""
    alone, together = _time(first, modeled), _time(split, modeled)
    return alone * first.devices / (together * split.devices)


_Choose = Callable[[Sequence[_Split], bool], int]


def _fastest(sweep: Sequence[_Split], modeled: bool) -> int:
    return min(range(len(sweep)), key=lambda index: _time(sweep[index], modeled))


def _cheapest(sweep: Sequence[_Split], modeled: bool) -> int:
    return min(
        range(len(sweep)), key=lambda index: _time(sweep[index], modeled) * sweep[index].devices
    )


def _widest(sweep: Sequence[_Split], modeled: bool) -> int:
    return max(
        index
        for index, split in enumerate(sweep)
        if _share(sweep[0], split, modeled) >= LEAST_SHARE or index == 0
    )


def _is_right(sweep: Sequence[_Split], best: _Choose, choose: _Choose) -> bool:
    """Return whether the choice by modeled times is as good as the best by measured ones."""
    chosen, truth = sweep[choose(sweep, True)], sweep[best(sweep, False)]
    if chosen is truth:
        return True
    if best is _fastest:
        return chosen.measured_us <= TIE * truth.measured_us
    if best is _cheapest:
        spent = chosen.measured_us * chosen.devices
        return spent <= TIE * truth.measured_us * truth.devices
    # Measurements do not decide on which side a split is that hardly differs from the threshold.
    wider = max(chosen, truth, key=lambda split: split.devices)
    return abs(_share(sweep[0], wider, False) / LEAST_SHARE - 1) <= TIE - 1
