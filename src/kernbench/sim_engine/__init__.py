"""Virtual time: ranks as processes, streams, PE schedules, links."""

from kernbench.sim_engine.carriers import Carrier, on_greenlet, on_thread
from kernbench.sim_engine.conditions import Conditions
from kernbench.sim_engine.deadlock import listed, microseconds, wait_line
from kernbench.sim_engine.handles import Handle, Timer
from kernbench.sim_engine.kernel_outline import (
    CommandSpan,
    KernelOutline,
    ProgramOutline,
    outline_kernel,
)
from kernbench.sim_engine.kernel_schedule import schedule_kernel
from kernbench.sim_engine.kernel_waves import resident_programs
from kernbench.sim_engine.lane_costs import LaneCosts
from kernbench.sim_engine.lanes import Lane, Lanes
from kernbench.sim_engine.network import Network, Transferred
from kernbench.sim_engine.ranks import Rank
from kernbench.sim_engine.selection import Asked, Choice, Selector
from kernbench.sim_engine.simulation import Simulation
from kernbench.sim_engine.sites import Site, user_site
from kernbench.sim_engine.stream import DeviceEngine, Stream, StreamCommand
from kernbench.sim_engine.tasks import Task

__all__ = [
    "Asked",
    "Carrier",
    "Choice",
    "CommandSpan",
    "Conditions",
    "DeviceEngine",
    "Handle",
    "KernelOutline",
    "Lane",
    "LaneCosts",
    "Lanes",
    "Network",
    "ProgramOutline",
    "Rank",
    "Selector",
    "Simulation",
    "Site",
    "Stream",
    "StreamCommand",
    "Task",
    "Timer",
    "Transferred",
    "listed",
    "microseconds",
    "on_greenlet",
    "on_thread",
    "outline_kernel",
    "resident_programs",
    "schedule_kernel",
    "user_site",
    "wait_line",
]
