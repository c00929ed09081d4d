"""Rows of whole programs by family: how each is answered, how far off, and why others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.accuracy.rows import Category
from kernbench.accuracy.score import Scored, measure, reasons
from validation.predictors.families.chosen import Family, family_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyErrors:
    """The rows of a family; errors in percent, None where no row has an answer."""

    name: str
    rows: int
    unanswered: int
    mape: float | None
    worst: float | None
    why_not: str
    """The most common reasons for rows without an answer, with their counts."""


def families_of(scored: Sequence[Scored], most_reasons: int = 3) -> list[FamilyErrors]:
    """Return the errors of each family that has rows."""
    rows: dict[Family, list[Scored]] = {}
    for item in scored:
        if item.row.category is Category.PROGRAMS:
            rows.setdefault(family_of(item.row, item.answer.why_not), []).append(item)
    return [_errors(family, rows[family], most_reasons) for family in Family if family in rows]


def _errors(family: Family, rows: Sequence[Scored], most_reasons: int) -> FamilyErrors:
    errors = measure(rows)
    off = [abs(row.error) * 100 for row in rows if row.answer.time_us is not None]
    why = [f"{count} {reason}" for count, reason in reasons(rows)[:most_reasons]]
    return FamilyErrors(
        name=family.value,
        rows=errors.rows,
        unanswered=errors.unanswered,
        mape=errors.mape,
        worst=max(off, default=None),
        why_not="; ".join(why),
    )
