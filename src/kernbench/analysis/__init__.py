"""Why a run took as long as it did: its critical path, and where every picosecond of it went."""

from kernbench.analysis.attribution import COPY, LINKS, OF_HOST, RANKS, WAIT, Spent, attribution
from kernbench.analysis.communication import communication, print_communication
from kernbench.analysis.critical_path import Segment, clipped, critical_path
from kernbench.analysis.difference import (
    Contribution,
    Difference,
    difference,
    difference_as_markdown,
    print_difference,
    slower_by,
)
from kernbench.analysis.difference_by_line import (
    LineDifference,
    difference_by_line,
    print_difference_by_line,
)
from kernbench.analysis.energy import format_joules, no_energy, print_energy, saved_energy
from kernbench.analysis.lines import (
    KernelLines,
    kernel_lines,
    kernels_by_time,
    lines_of_kernels,
    print_lines,
    shown_lines,
    source_line,
)
from kernbench.analysis.memory import (
    MemoryReport,
    memory_curve,
    memory_use,
    peak_line,
    print_memory,
)
from kernbench.analysis.modules import (
    ModuleReport,
    print_modules,
    program_modules,
    shown_modules,
)
from kernbench.analysis.program_lines import ProgramReport, print_program_lines, program_lines
from kernbench.analysis.ranges import ALL, REST, STARTUP, WHOLE_RUN, RunPart, part_of
from kernbench.analysis.tables import TableColumn, fitting_table
from kernbench.analysis.why import Why, explain, print_why

__all__ = [
    "ALL",
    "COPY",
    "LINKS",
    "OF_HOST",
    "RANKS",
    "REST",
    "STARTUP",
    "WAIT",
    "WHOLE_RUN",
    "Contribution",
    "Difference",
    "KernelLines",
    "LineDifference",
    "MemoryReport",
    "ModuleReport",
    "ProgramReport",
    "RunPart",
    "Segment",
    "Spent",
    "TableColumn",
    "Why",
    "attribution",
    "clipped",
    "communication",
    "critical_path",
    "difference",
    "difference_as_markdown",
    "difference_by_line",
    "explain",
    "fitting_table",
    "format_joules",
    "kernel_lines",
    "kernels_by_time",
    "lines_of_kernels",
    "memory_curve",
    "memory_use",
    "no_energy",
    "part_of",
    "peak_line",
    "print_communication",
    "print_difference",
    "print_difference_by_line",
    "print_energy",
    "print_lines",
    "print_memory",
    "print_modules",
    "print_program_lines",
    "print_why",
    "program_lines",
    "program_modules",
    "saved_energy",
    "shown_lines",
    "shown_modules",
    "slower_by",
    "source_line",
]
