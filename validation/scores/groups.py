"""Rows in the groups of a table of errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernbench.accuracy.rows import Category
from kernbench.accuracy.score import Scored
from validation.predictors.families.chosen import family_of


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one category, device, source, op and dtype."""

    category: Category
    device: str
    source: str
    op: str
    dtype: str

    @classmethod
    def of(cls, scored: Scored) -> Group:
        row = scored.row
        if row.category is Category.PROGRAMS:
            # Their operations are commands, and their dtypes sentences.
            family = family_of(row, scored.answer.why_not)
            return cls(row.category, row.device, row.source, family.value, "")
        return cls(row.category, row.device, row.source, row.op, row.dtype)


def grouped(scored: Iterable[Scored]) -> dict[Group, list[Scored]]:
    """Return the rows by group, sorted by category and name."""
    values: dict[Group, list[Scored]] = {}
    for entry in scored:
        values.setdefault(Group.of(entry), []).append(entry)
    key = list(Category).index
    return dict(
        sorted(
            values.items(),
            key=lambda item: (key(item[0].category), item[0].device, item[0].source, item[0].op,
                              item[0].dtype),
        )
    )  # fmt: skip
