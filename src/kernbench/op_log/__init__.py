"""The columnar record of a run."""

from kernbench.op_log.columns import (
    CommandColumns,
    Spans,
    build_spans,
    command_columns,
    covered_ps,
    exposed_ps,
    host_columns,
)
from kernbench.op_log.energy import (
    Draw,
    Energy,
    PowerPace,
    WorkCounts,
    added,
    core_ps,
    pace_of,
    shared_clock,
    uncapped,
)
from kernbench.op_log.log import (
    HOST_KINDS,
    KINDS,
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
from kernbench.op_log.program_lines import UNKNOWN_SITE, ProgramLines
from kernbench.op_log.rows import (
    TEXT_COLUMNS,
    WIDE_COLUMNS,
    RowReader,
    Rows,
    TextColumn,
    rank_shares,
)
from kernbench.op_log.run_energy import (
    EnergyReport,
    average_watts,
    energy_of,
    power_over_time,
)
from kernbench.op_log.steps import (
    DeviceTimes,
    RunSteps,
    Window,
    all_steps,
    find_steps,
    joined,
    line_visits,
    named_windows,
    overlap_ps,
    range_names,
)
from kernbench.op_log.uncollected import uncollected
