"""The modules of a program: what each caused on hosts and devices, with all that is inside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from kernbench.analysis.critical_path import Segment
from kernbench.analysis.program_lines import (
    Caused,
    CausedSums,
    added,
    amounts,
    caused,
    caused_sums,
    titles_of_caused,
)
from kernbench.analysis.tables import plain_table, ranks_said
from kernbench.op_log import OpLog, Window
from kernbench.report import format_ns

OUTSIDE = "(outside of modules)"
_SEPARATORS = re.compile(r"[./]")
_NUMBERED = re.compile(r"(?<=[./])\d+(?=[./]|$)")
_MOST_ROWS = 60
"""Rows that are printed, the outermost ones and what is in them in order."""


class CausedByModule(Caused):
    """What a module caused, forward and backward, with the modules in it."""

    module: str
    """The path from the outermost module that was called; empty outside of all. ``*`` stands for
    any number, as that of a layer in a list."""
    modules: int
    """How many modules those are."""


class ModuleReport(TypedDict):
    """The modules of a program; what the outermost ones caused adds up to ``all``."""

    ranks: int
    """All of the program's."""
    ran: int
    """Those that ran, for all if the run is folded; what modules caused is of them."""
    time_ns: float
    all: Caused
    modules: list[CausedByModule]
    """A module stands before those in it, in the order in which they first did something."""


def program_modules(
    log: OpLog, ranks: int, within: Window | None = None, path: Sequence[Segment] | None = None
) -> ModuleReport:
    """Return what each module of the program caused, in a window if one is given.

    What happens while a module's forward runs is the innermost such module's, and so is what its
    backward pass does. Modules that differ by numbers alone, as equal layers do, are one. ``path``
    is the critical path, if it is known.

    Raises:
        UsageError: The run does not say.
    """
    own = caused_sums(log, within, path, by_module=True)
    sums = CausedSums()
    members: dict[str, set[str]] = {}
    for module, values in own.items():
        for outer in _outward(module):
            name = _NUMBERED.sub("*", outer)
            sums[name] = added([sums[name], values])
            members.setdefault(name, set()).add(outer)
    return {
        "ranks": ranks,
        "ran": len(log.ranks_of(ranks)),
        "time_ns": (log.end_ps if within is None else within.mean_ps) / 1000,
        "all": caused(added(own.values())),
        "modules": [
            {"module": name, "modules": len(members[name]), **caused(sums[name])}
            for name in _as_a_tree(sums)
            if any(sums[name])
        ],
    }


def _outward(path: str) -> Iterator[str]:
    """Yield a path and those of the modules around it.

    >>> list(_outward("Net.layers.0"))
    ['Net', 'Net.layers', 'Net.layers.0']
    """
    for separator in _SEPARATORS.finditer(path):
        yield path[: separator.start()]
    yield path


def _as_a_tree(names: Collection[str]) -> list[str]:
    """Return paths with each behind that around it, else in their order."""
    first = {name: number for number, name in enumerate(names)}
    return sorted(names, key=lambda name: [first[outer] for outer in _outward(name)])


def shown_modules(report: ModuleReport) -> Iterator[tuple[int, str, CausedByModule]]:
    """Yield how deep each module is shown, its name there, and what it caused.

    One in which there is only one other and nothing else, as a list of layers, is one with it.
    """
    rows = report["modules"]
    shown: list[str] = []
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        path = row["module"]
        if after is not None and _is_all_of(row, after):
            continue
        while shown and not _is_in(path, shown[-1]):
            shown.pop()
        name = path[len(shown[-1]) + 1 :] if shown else path
        many = f" ({row['modules']})" if name.endswith("*") else ""
        yield len(shown), f"{name}{many}" if path else OUTSIDE, row
        shown.append(path)


def _is_in(path: str, outer: str) -> bool:
    return path.startswith((f"{outer}.", f"{outer}/"))


def _is_all_of(outer: CausedByModule, inner: CausedByModule) -> bool:
    names = Caused.__annotations__
    same = all(outer[name] == inner[name] for name in names)  # type: ignore[literal-required]
    return same and _is_in(inner["module"], outer["module"])


def print_modules(report: ModuleReport, console: Console) -> None:
    """Print the modules as a tree, with what each caused."""
    ranks = ranks_said(report["ranks"], report["ran"])
    said = "forward and backward, each with the modules in it"
    console.print(Text(f"\nmodules: {ranks}, {format_ns(report['time_ns'])}; {said}"))
    if not any(row["module"] for row in report["modules"]):
        console.print(Text("no forward of a module is known to have run"))
        return
    table = plain_table("module", *titles_of_caused(console)[1:])
    rows = list(shown_modules(report))
    for depth, name, row in rows[:_MOST_ROWS]:
        table.add_row(f"{'  ' * depth}{name}", *amounts(row, report["all"], console))
    console.print(table)
    if len(rows) > _MOST_ROWS:
        console.print(Text(f"({len(rows) - _MOST_ROWS} more: --json has all)"))
