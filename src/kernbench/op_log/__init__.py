"""The columnar record of a run."""

from kernbench.op_log.energy import Energy, Pace, Work, added, core_ps, pace_of, uncapped
from kernbench.op_log.log import (
    ROW_COLUMNS,
    Column,
    Each,
    HostRange,
    HostSpan,
    Instance,
    Limit,
    OpLog,
    Site,
    Template,
    absolute_ps,
)
from kernbench.op_log.rows import (
    TEXT_COLUMNS,
    WIDE_COLUMNS,
    RowReader,
    Rows,
    rank_shares,
)
from kernbench.op_log.spans import Spans, build_spans, covered_ps, exposed_ps

__all__ = [
    "ROW_COLUMNS",
    "TEXT_COLUMNS",
    "WIDE_COLUMNS",
    "Column",
    "Each",
    "Energy",
    "HostRange",
    "HostSpan",
    "Instance",
    "Limit",
    "OpLog",
    "Pace",
    "RowReader",
    "Rows",
    "Site",
    "Spans",
    "Template",
    "Work",
    "absolute_ps",
    "added",
    "build_spans",
    "core_ps",
    "covered_ps",
    "exposed_ps",
    "pace_of",
    "rank_shares",
    "uncapped",
]
