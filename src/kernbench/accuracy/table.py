"""The errors of measured rows as a table, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernbench.accuracy.rows import Category
from kernbench.accuracy.score import Errors, Scored, measure, reasons

_HEAD = (
    "category", "device", "source", "op", "rows", "unanswered", "MAPE", "median", "p90", "bias",
)  # fmt: skip
_LEFT = 4
_MOST_REASONS = 12
Key = tuple[Category, str, str, str, str]
"""Category, device, source, operation, dtype."""


def by_group(scored: Iterable[Scored]) -> Mapping[Key, list[Scored]]:
    """Return rows by what they have in common, sorted."""
    groups: dict[Key, list[Scored]] = {}
    for one in scored:
        row = one.row
        key = (row.category, row.device, row.source, row.op, row.dtype)
        groups.setdefault(key, []).append(one)
    order = list(Category).index
    return dict(sorted(groups.items(), key=lambda item: (order(item[0][0]), *item[0][1:])))


def by_category(scored: Sequence[Scored]) -> Mapping[Category, list[Scored]]:
    """Return rows by category; those without rows are left out."""
    rows = {kind: [one for one in scored if one.row.category is kind] for kind in Category}
    return {kind: of_kind for kind, of_kind in rows.items() if of_kind}


def errors_json(scored: Sequence[Scored]) -> dict[str, Any]:
    """Return errors per category and per group, in percent."""
    totals, shown = ("rows", "unanswered", "mape", "median", "p90"), ("bias", "spearman")
    groups = [
        {
            **dict(zip(("category", "device", "source", "op", "dtype"), key, strict=True)),
            **_numbers(rows, (*totals, *shown)),
        }
        for key, rows in by_group(scored).items()
    ]
    categories = {kind.value: _numbers(rows, totals) for kind, rows in by_category(scored).items()}
    return {"categories": categories, "groups": groups}


def _numbers(rows: Sequence[Scored], names: Iterable[str]) -> dict[str, Any]:
    errors = measure(rows)
    return {name: getattr(errors, name) for name in names}


def errors_text(scored: Sequence[Scored], worst: int) -> str:
    """Return the table as text, with reasons of unanswered rows and the ``worst`` rows."""
    lines = [list(_HEAD)]
    for (kind, device, source, op, dtype), rows in by_group(scored).items():
        lines.append([kind.value, device, source, f"{op} {dtype}", *cells_of(measure(rows))])
    for kind, rows in by_category(scored).items():
        lines.append([kind.value, "all", "", "", *cells_of(measure(rows))])
    text = columns(lines, _LEFT)
    why = reasons(scored)
    if why:
        text += ["", "unanswered rows:"]
        text += [f"{count:>7}  {reason}" for count, reason in why[:_MOST_REASONS]]
        left = sum(count for count, _ in why[_MOST_REASONS:])
        text += [f"{left:>7}  for other reasons"] if left else []
    if worst:
        text += ["", f"the {worst} rows that are furthest off:", *furthest(scored, worst)]
    return "\n".join(text)


def cells_of(errors: Errors) -> list[str]:
    """Return the numbers of a line of the table, without rank correlations."""
    percent = [percent_of(value) for value in (errors.mape, errors.median, errors.p90)]
    bias = "-" if errors.bias is None else f"{errors.bias:+.1f}"
    return [str(errors.rows), str(errors.unanswered), *percent, bias]


def percent_of(value: float | None) -> str:
    """Return percent with one digit, a dash for none."""
    return "-" if value is None else f"{value:.1f}"


def columns(lines: Sequence[Sequence[str]], num_left: int) -> list[str]:
    """Return lines with aligned cells, the first ``num_left`` columns to the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < num_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def furthest(scored: Iterable[Scored], count: int) -> list[str]:
    """Return lines of the rows that are furthest off."""
    answered = [one for one in scored if one.answer.time_us is not None]
    # By ratio: half as long counts as much as twice as long.
    answered.sort(key=lambda one: -max(1 + one.error, 1 / max(1 + one.error, 1e-12)))
    return [
        f"{one.error * 100:>+8.1f} %  {one.answer.time_us or 0:>10.2f} for "
        f"{one.row.time_us:>10.2f} us  {one.row}  [{one.answer.how}]"
        f"  {one.row.source}, {one.row.where}"
        for one in answered[:count]
    ]
