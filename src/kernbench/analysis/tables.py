"""Tables of analyses, as wide as the console allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from kernbench.report import LEAST_COLUMNS, WIDE_COLUMNS

SHOWN_LINES = 12
"""The lines that a long table shows; the last one sums up the others."""


def is_wide(console: Console) -> bool:
    """Return whether tables may have all of their columns, and let a narrow console wrap lines."""
    console.width = max(console.width, LEAST_COLUMNS)
    return console.width >= WIDE_COLUMNS


def plain_table(*columns: str, left: int = 1) -> Table:
    """Return an empty table, the first ``left`` columns of which are texts."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, title in enumerate(columns):
        table.add_column(title, justify="left" if number < left else "right", overflow="fold")
    return table


def ranks_said(ranks: int, ran: int, machine: str = "") -> str:
    """Return how many ranks there are, of which machine, and how many of a folded run ran.

    >>> ranks_said(1, 1), ranks_said(1024, 1, "h100-sxm")
    ('1 rank', '1024 ranks of h100-sxm (1 of them ran)')
    """
    of = f" of {machine}" if machine else ""
    folded = "" if ran == ranks else f" ({ran} of them ran)"
    return f"{ranks} rank{'s' if ranks != 1 else ''}{of}{folded}"


class TableColumn(NamedTuple):
    """A column of a table that fits itself to the console."""

    title: str
    is_number: bool = True
    """Whether it may not be folded."""
    only_wide: bool = False
    """Whether narrow consoles leave it out."""


def fitting_table(
    console: Console, columns: Sequence[TableColumn], rows: Iterable[Sequence[str]]
) -> Table:
    """Return a table of rows, with the columns that a console has room for."""
    wide = is_wide(console)
    shown = [number for number, column in enumerate(columns) if wide or not column.only_wide]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number in shown:
        column = columns[number]
        justify: JustifyMethod = "right" if number else "left"
        table.add_column(column.title, justify=justify, overflow="fold", no_wrap=column.is_number)
    for row in rows:
        # Names and source lines may have brackets, which are no markup.
        table.add_row(*[Text(row[number]) for number in shown])
    return table
