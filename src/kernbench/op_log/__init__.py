"""The columnar record of a run."""

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
    "HostRange",
    "HostSpan",
    "Instance",
    "Limit",
    "OpLog",
    "RowReader",
    "Rows",
    "Site",
    "Spans",
    "Template",
    "absolute_ps",
    "build_spans",
    "covered_ps",
    "exposed_ps",
    "rank_shares",
]
