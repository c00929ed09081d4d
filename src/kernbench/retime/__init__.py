"""Saved runs, done again without their programs: on another machine, or with keys changed."""

from kernbench.retime.all_ranks import placements_of_all, play_all_ranks
from kernbench.retime.findings import RankedFindings, as_markdown, findings, print_findings
from kernbench.retime.retiming import Retiming
from kernbench.retime.what_if import WhatIf
from kernbench.retime.work_of_ranks import (
    RankWork,
    busy_ps,
    first_difference,
    groups_of,
    work_of_ranks,
)

__all__ = [
    "RankWork",
    "RankedFindings",
    "Retiming",
    "WhatIf",
    "as_markdown",
    "busy_ps",
    "findings",
    "first_difference",
    "groups_of",
    "placements_of_all",
    "play_all_ranks",
    "print_findings",
    "work_of_ranks",
]
