"""What a field of the report looks like in the tables.

A field of the report is one entry of ``report/summary.py``: the key in the JSON with its type (and
so its unit), and in ``Annotated`` the columns that show it, in the order of the table; none for a
field that only the JSON has. The function below the entry computes it; nothing else knows it. What
documents show of it is written anew by ``KERNBENCH_UPDATE_DOCS=1 pytest tests/docs``: read the
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from kernbench.report.peaks import Peaks
from kernbench.report.units import format_amount, format_ns

Row = Mapping[str, Any]
Numbers = tuple[Any, ...]
"""What a cell is made of; a table that sums lines up takes the least, the mean and the most."""

WIDE_COLUMNS = 78
"""From this width on, tables show times beside shares."""
BOUND_COLUMNS = 60
"""From this width on, the table of kernels says what each is bound by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table, from :data:`least_width` columns of the console on."""

    title: str
    numbers: Callable[[Row, Peaks], Numbers]
    text: Callable[[Numbers, bool], str]
    """The cell's text, from the numbers and whether the table is a wide one."""
    narrow_title: str | None = None
    least_width: int = 0
    is_summed: bool = False
    """Whether lines that are left out are summed up here."""
    is_name: bool = False
    """Whether it may take more than one line; a number is never cut."""

    def title_at(self, wide: bool) -> str:
        """Return the title in a wide table, or in a narrow one."""
        return self.title if wide or self.narrow_title is None else self.narrow_title


def columns_of(kind: type) -> tuple[Column, ...]:
    """Return the columns that the fields of a part of the report define, in their order."""
    hints = get_type_hints(kind, include_extras=True).values()
    return tuple(
        column
        for hint in hints
        for column in getattr(hint, "__metadata__", ())
        if isinstance(column, Column)
    )


def shown_as(key: str, title: str, form: Callable[[Any], str] = str, **how: Any) -> Column:
    """Return the column of one value."""
    return Column(
        title=title,
        numbers=lambda row, peaks: (row[key],),
        text=lambda numbers, wide: form(numbers[0]),
        **how,
    )


def part_of_time(key: str, title: str, **how: Any) -> Column:
    """Return the column of a time and its share of ``time_ns``; a narrow one has the share only."""

    def text(numbers: Numbers, wide: bool) -> str:
        time_ns, share = numbers
        percent = f"{100 * share:.0f}%"
        return f"{format_ns(time_ns)} {percent:>4}" if wide else percent

    return Column(
        title=title,
        numbers=lambda row, peaks: (row[key], row[key] / (row["time_ns"] or 1)),
        text=text,
        **how,
    )


def rate(key: str, title: str, unit: str) -> Column:
    """Return the column of an amount over ``time_ns``, in wide tables."""

    def text(numbers: Numbers, wide: bool) -> str:
        amount, time_ns = numbers
        return format_amount(amount * 1e9 / time_ns, unit) if amount and time_ns else "-"

    return Column(
        title=title,
        numbers=lambda row, peaks: (row[key], row["time_ns"]),
        text=text,
        least_width=WIDE_COLUMNS,
    )


def of_peak(title: str, **how: Any) -> Column:
    """Return the column of what was achieved of the SIP's peaks, compute or HBM, the larger."""

    def numbers(row: Row, peaks: Peaks) -> Numbers:
        achieved = max(row["flops"] / peaks.flops_per_ns, row["hbm_bytes"] / peaks.hbm_bytes_per_ns)
        return (achieved / (row["time_ns"] or 1),)

    return Column(title=title, numbers=numbers, text=lambda result, wide: percent(result[0]), **how)


def percent(share: float) -> str:
    """Return a share with a decimal.

    >>> percent(0.5)
    '50.0%'
    """
    return f"{100 * share:.1f}%"


def in_bytes(amount: float) -> str:
    """Return an amount of bytes."""
    return format_amount(amount, "B")
