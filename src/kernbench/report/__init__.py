"""What a run cost and why: the report, its tables, and the timeline.

What writes files for other programs is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.on_demand import asked_for
from kernbench.report.accuracy import (
    ELSEWHERE,
    HOST,
    UNKNOWN,
    FamilyAccuracy,
    FamilyReport,
    Ranges,
    accuracy_line,
    kind_of,
    likenesses,
    pair_line,
    published_error,
    published_errors,
    range_of,
)
from kernbench.report.columns import WIDE_COLUMNS
from kernbench.report.idle import IdleParts, idle_parts
from kernbench.report.peaks import Peaks, peaks_of
from kernbench.report.summary import (
    CollectiveReport,
    KernelReport,
    RankReport,
    Report,
    build_report,
    cost_usd,
    kernels_within,
)
from kernbench.report.table import LEAST_COLUMNS, ShownReport, as_html, print_report
from kernbench.report.units import format_amount, format_ns, format_share, format_size

if TYPE_CHECKING:
    from kernbench.report.formats.folders import (
        write_execution_traces,
        write_profiles,
        write_statistics,
    )
    from kernbench.report.formats.kineto import write_kineto
    from kernbench.report.formats.rank_view import HostStep, RankView, process_groups, rank_views
    from kernbench.report.perfetto import dump_trace, trace_form, write_trace
    from kernbench.report.slices import merged_slices
    from kernbench.report.timeline import Timeline

_HOMES = {
    "HostStep": "formats.rank_view", "RankView": "formats.rank_view", "Timeline": "timeline",
    "dump_trace": "perfetto", "merged_slices": "slices", "process_groups": "formats.rank_view",
    "rank_views": "formats.rank_view", "trace_form": "perfetto",
    "write_execution_traces": "formats.folders", "write_kineto": "formats.kineto",
    "write_profiles": "formats.folders", "write_statistics": "formats.folders",
    "write_trace": "perfetto",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what writes files."""
    return asked_for(__name__, _HOMES, name)
