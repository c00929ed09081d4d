"""Tables of analyses, as wide as the console allows."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

SHOWN_LINES = 12
"""Of a table that could be long; the last line sums up the others."""


def plain_table(*columns: str, left: int = 1) -> Table:
    """Return an empty table, the first ``left`` columns of which are texts."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, title in enumerate(columns):
        table.add_column(title, justify="left" if number < left else "right", overflow="fold")
    return table
