"""The runtime: the object that a bench uses as ``torch``, and its tensors."""

from kernbench.runtime_api.base.actions import Keeper
from kernbench.runtime_api.base.folding import (
    CollectiveTimes,
    Folding,
    RankAxis,
    Timetable,
    axes_of,
    unfolded,
)
from kernbench.runtime_api.base.memory_recorder import makes_results
from kernbench.runtime_api.base.rank_state import PLAIN_LAUNCH, LaunchAttributes, RankState
from kernbench.runtime_api.base.recorder import LineRecorder
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.base.streams import DeviceStream, Marker, WaitFor
from kernbench.runtime_api.collectives.collective import Collective, LoneCollective
from kernbench.runtime_api.collectives.disagreement import not_fitting
from kernbench.runtime_api.collectives.work import Part, Signature, Work
from kernbench.runtime_api.front.context import RuntimeContext, current_context
from kernbench.runtime_api.front.distributed import Distributed, ReduceOp
from kernbench.runtime_api.front.groups import ProcessGroup
from kernbench.runtime_api.front.multiprocessing import SpawnContext, SpawnException, StartedRank
from kernbench.runtime_api.front.player import PlayedPart, Player
from kernbench.runtime_api.front.restarts import with_restarts
from kernbench.runtime_api.launches.argument_errors import refuse_out_of_bounds
from kernbench.runtime_api.launches.kept_launches import describe_launch, launch_of
from kernbench.runtime_api.launches.kernel_engine import Grid, KernelEngine, Policies
from kernbench.runtime_api.launches.kernel_plan import KernelPlan
from kernbench.runtime_api.launches.launcher import KernelLauncher
from kernbench.runtime_api.launches.live_launch import LivePlan, Reach, run_on_copies, run_watched
from kernbench.runtime_api.launches.paced_plan import build_paced, paced_plan
from kernbench.runtime_api.launches.tables import tables_of
from kernbench.runtime_api.memory.host_tensor import HostMemory, LentMemory, Place
from kernbench.runtime_api.memory.storage import Sharing, keep_for, unreachable
from kernbench.runtime_api.tensors.host_read import HOST_READS
from kernbench.runtime_api.tensors.operators import register_operators
from kernbench.runtime_api.tensors.tensor import Tensor
from kernbench.saved import Action
