"""What the benches of one run measured, as a page that says of which commit and day it is."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Row:
    """A measurement beside its goal."""

    what: str
    measured: float
    goal: float
    unit: str
    at_least: bool

    def text(self) -> tuple[str, str, str, str]:
        reached = self.measured >= self.goal if self.at_least else self.measured <= self.goal
        bound = "at least" if self.at_least else "at most"
        shown, goal = (
            f"{value:,.{_digits(value)}f}{self.unit}" for value in (self.measured, self.goal)
        )
        return self.what, shown, f"{bound} {goal}", "yes" if reached else "no"


def _digits(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2


def lines(rows: Sequence[Row]) -> list[str]:
    """Return a table of Markdown."""
    texts = [("what", "measured", "goal", "reached"), *(row.text() for row in rows)]
    widths = [max(len(text[column]) for text in texts) for column in range(4)]
    texts.insert(1, ("-" * widths[0], "-" * widths[1], "-" * widths[2], "-" * widths[3]))
    return [
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(text, widths, strict=True))} |"
        for text in texts
    ]


def page(rows: Sequence[Row], left_out: Sequence[str], described: tuple[str, str]) -> str:
    """Return the whole page: where and when it was measured, the table, what is not in it.

    ``described`` is the commit that was measured, and its date.
    """
    commit, committed = described
    today = datetime.now(UTC).date().isoformat()
    load = os.getloadavg()[2]
    releases = ", ".join(f"{name} {_release(name)}" for name in ("numpy", "triton", "torch"))
    text = [
        "# What the benches measured",
        "",
        "Written by `make bench-host`; one run, and all of it. Compare ratios, not seconds.",
        "",
        f"{today}, commit `{commit}` of {committed}, on {os.cpu_count()} cores with a mean load of "
        f"{load:.1f}; Python {platform.python_version()}, {releases}.",
        "",
        *lines(rows),
    ]
    if left_out:
        text += ["", "Left out:", "", *(f"- {item}" for item in left_out)]
    return "\n".join(text) + "\n"


def _release(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
