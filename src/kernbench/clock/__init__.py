"""Virtual time: ranks as processes, the streams and commands of devices, what shares their HBM."""

from kernbench.clock.carriers import Carrier, CtrlC, on_greenlet, on_thread, taking_turns
from kernbench.clock.deadlock import listed, microseconds, rank_lines, wait_line
from kernbench.clock.handles import Handle, Timer
from kernbench.clock.hbm_sharing import Flow, HbmSharing, Share, demand_of
from kernbench.clock.ranks import Rank
from kernbench.clock.simulation import Simulation
from kernbench.clock.sites import (
    UserSite,
    frame_of_program,
    is_of_program,
    known_owner,
    local_of,
    owner_of,
    raised_at,
    user_site,
)
from kernbench.clock.stream import Callers, DeviceEngine, Stream, StreamCommand
from kernbench.clock.tasks import Task
