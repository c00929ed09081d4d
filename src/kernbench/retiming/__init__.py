"""Saved runs, done again without their programs: on another machine, or with keys changed."""

from kernbench.retiming.findings import (
    RankedFindings,
    as_markdown,
    findings,
    host_findings,
    print_findings,
    print_host_findings,
)
from kernbench.retiming.retiming import Retiming, placements_of_all
from kernbench.retiming.sensitivity import WhatIf, print_sensitivity, sensitivity
from kernbench.retiming.work_of_ranks import (
    RankWork,
    first_difference,
    groups_of,
    other_calls,
    work_of_ranks,
)
