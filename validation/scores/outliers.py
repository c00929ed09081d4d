"""Rows that are further off than a goal lets any be, beside other rows of their programs.

Others tell whether the model or the row stands out: how far off they are, and what the source
measured of the same program, on the same device and with pictures or texts of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from kernbench.accuracy.rows import Category, Row
from kernbench.accuracy.score import Scored, measure
from validation.scores.goals import beyond_worst

_PROGRAM = ("source", "model", "phase", "n_devices", "compile")
"""Columns in which the rows of a program are equal."""
_SHAPE = ("img_size", "seq_len", "memory_format", "dtype")
"""Columns in which rows are equal whose times per item should be."""
_SHOWN = (
    "model", "img_size", "seq_len", "batch_size", "local_batch", "memory_format", "phase", "dtype",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A row and others of its program; times in microseconds, errors in percent."""

    device: str
    source: str
    program: str
    measured_us: float
    modeled_us: float
    others: int
    """Other answered rows of the program, on any device and of any size."""
    others_mape: float | None
    item_us: float | None
    """Measured per picture or text; None where the source does not say how many there are."""
    alike_us: tuple[float, ...]
    """The same of other rows on that device with items of that size, ascending."""

    @property
    def error(self) -> float:
        """Modeled over measured time, minus 1, in percent."""
        return 100 * (self.modeled_us / self.measured_us - 1)


def outliers_of(scored: Sequence[Scored]) -> list[Outlier]:
    """Return the rows that break a goal's limit of single rows, the furthest off first."""
    answered = [
        each
        for each in scored
        if each.row.category is Category.PROGRAMS and each.answer.time_us is not None
    ]
    found = [_outlier(each, answered) for each in beyond_worst(answered)]
    return sorted(found, key=lambda each: -abs(each.error))


def _outlier(given: Scored, answered: Sequence[Scored]) -> Outlier:
    row = given.row
    others = [
        each
        for each in answered
        if each is not given and _key(each.row, _PROGRAM) == _key(row, _PROGRAM)
    ]
    alike = [
        _per_item(each.row)
        for each in others
        if each.row.device == row.device and _key(each.row, _SHAPE) == _key(row, _SHAPE)
    ]
    assert given.answer.time_us is not None
    return Outlier(
        device=row.device,
        source=row.source,
        program=" ".join(filter(None, map(partial(_field, row), _SHOWN))),
        measured_us=row.time_us,
        modeled_us=given.answer.time_us,
        others=len(others),
        others_mape=measure(others).mape,
        item_us=_per_item(row),
        alike_us=tuple(sorted(each for each in alike if each is not None)),
    )


def _key(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(_field(row, name) for name in columns)


def _field(row: Row, name: str) -> str:
    # 1024 and 1024.0 are one size.
    return row.fields.get(name, "").removesuffix(".0")


def _per_item(row: Row) -> float | None:
    items = row.optional("batch_size") or row.optional("local_batch")
    return None if items is None else row.time_us / items
