"""Virtual time: ranks as processes, streams, PE schedules, links."""

from kernbench.sim_engine.cache_contents import CacheContents
from kernbench.sim_engine.carriers import Carrier, CtrlC, on_greenlet, on_thread
from kernbench.sim_engine.conditions import Conditions
from kernbench.sim_engine.deadlock import listed, microseconds, rank_lines, wait_line
from kernbench.sim_engine.handles import Handle, Timer
from kernbench.sim_engine.hbm_sharing import Flow, HbmSharing, Share, demand_of
from kernbench.sim_engine.kernel_costs import dot_ps, math_ps
from kernbench.sim_engine.kernel_operands import (
    KernelOperand,
    cached_shares,
    kernel_operands,
    meet_operands,
)
from kernbench.sim_engine.kernel_outline import (
    CommandSpan,
    KernelOutline,
    ProgramOutline,
    outline_kernel,
)
from kernbench.sim_engine.kernel_schedule import (
    check_kernel,
    kernel_duration_ps,
    schedule_kernel,
)
from kernbench.sim_engine.kernel_tables import Tables, gathered_params
from kernbench.sim_engine.kernel_waves import line_of_short_rows, resident_programs
from kernbench.sim_engine.lane_costs import LaneCosts
from kernbench.sim_engine.lanes import Lane, Lanes
from kernbench.sim_engine.network import Network, Transferred
from kernbench.sim_engine.ranks import Rank
from kernbench.sim_engine.selection import Asked, Choice, Selector
from kernbench.sim_engine.simulation import Simulation
from kernbench.sim_engine.sites import Site, raised_at, user_lines, user_site
from kernbench.sim_engine.stream import DeviceEngine, Stream, StreamCommand
from kernbench.sim_engine.tasks import Task

__all__ = [
    "Asked",
    "CacheContents",
    "Carrier",
    "Choice",
    "CommandSpan",
    "Conditions",
    "CtrlC",
    "DeviceEngine",
    "Flow",
    "Handle",
    "HbmSharing",
    "KernelOperand",
    "KernelOutline",
    "Lane",
    "LaneCosts",
    "Lanes",
    "Network",
    "ProgramOutline",
    "Rank",
    "Selector",
    "Share",
    "Simulation",
    "Site",
    "Stream",
    "StreamCommand",
    "Tables",
    "Task",
    "Timer",
    "Transferred",
    "cached_shares",
    "check_kernel",
    "demand_of",
    "dot_ps",
    "gathered_params",
    "kernel_duration_ps",
    "kernel_operands",
    "line_of_short_rows",
    "listed",
    "math_ps",
    "meet_operands",
    "microseconds",
    "on_greenlet",
    "on_thread",
    "outline_kernel",
    "raised_at",
    "rank_lines",
    "resident_programs",
    "schedule_kernel",
    "user_lines",
    "user_site",
    "wait_line",
]
