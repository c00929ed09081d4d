"""The tables of a run as HTML, for notebooks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from kernbench.hardware import Machine
from kernbench.op_log import OpLog
from kernbench.report.idle import idle_parts
from kernbench.report.peaks import peaks_of
from kernbench.report.summary import Report
from kernbench.report.table import print_report

_COLUMNS = 110
_PRE = '<pre style="line-height:1.2">{code}</pre>'


def as_html(show: Callable[[Console], None]) -> str:
    """Return what a function prints to a console, as HTML."""
    console = Console(
        file=io.StringIO(), record=True, width=_COLUMNS, highlight=False, force_jupyter=False
    )
    show(console)
    return console.export_html(inline_styles=True, code_format=_PRE)


def report_html(report: Report, machine: Machine, log: OpLog) -> str:
    """Return the tables that ``kernbench run`` prints, as HTML."""
    return as_html(
        lambda console: print_report(report, peaks_of(machine), console, idle_parts(log))
    )


class ShownReport(dict[str, Any]):
    """A report that a notebook shows as its tables."""

    def __init__(self, report: Report, machine: Machine, log: OpLog) -> None:
        super().__init__(report)
        self._of = machine, log

    def _repr_html_(self) -> str:
        return report_html(self, *self._of)  # type: ignore[arg-type]  # the same keys
