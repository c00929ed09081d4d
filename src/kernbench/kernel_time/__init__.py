"""How long a kernel takes on the PEs of a SIP, and when each of its commands runs.

Launches that are timed in steps, as others run, are imported when one is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.kernel_time.conditions import Conditions, ThreadBlock
from kernbench.kernel_time.costs.cache_contents import CacheContents, CacheSteps
from kernbench.kernel_time.costs.cached_operands import (
    KernelOperand,
    KernelOperands,
    cached_shares,
    kernel_operands,
    meet_operands,
)
from kernbench.kernel_time.costs.command_costs import dot_ps, math_ps
from kernbench.kernel_time.costs.lookup_tables import Tables, gathered_params
from kernbench.kernel_time.costs.shared_cache import (
    SHARES,
    SharedCache,
    kept_share,
    nearest_step,
    still_there,
)
from kernbench.kernel_time.launch.outline import (
    CommandSpan,
    KernelOutline,
    ProgramOutline,
    outline_kernel,
)
from kernbench.kernel_time.launch.schedule import check_kernel, kernel_duration_ps, schedule_kernel
from kernbench.kernel_time.launch.schedule_keys import schedule_key
from kernbench.kernel_time.launch.waves import build_waves, line_of_short_rows, resident_programs
from kernbench.on_demand import asked_for

if TYPE_CHECKING:
    from kernbench.kernel_time.stepwise.strand_costs import StrandCosts
    from kernbench.kernel_time.stepwise.timed_strands import TimedStrand, TimedStrands

_HOMES = {
    "StrandCosts": "stepwise.strand_costs",
    "TimedStrand": "stepwise.timed_strands",
    "TimedStrands": "stepwise.timed_strands",
}


def __getattr__(name: str) -> Any:
    """Import what times launches in steps."""
    return asked_for(__name__, _HOMES, name)
