"""The runtime: the object that a bench uses as ``torch``, and its tensors."""

from kernbench.runtime_api.argument_errors import refuse_out_of_bounds
from kernbench.runtime_api.collective import Collective
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.current import current_context
from kernbench.runtime_api.disagreement import not_fitting
from kernbench.runtime_api.distributed import Distributed, ReduceOp
from kernbench.runtime_api.host_read import HOST_READS
from kernbench.runtime_api.host_tensor import HostMemory
from kernbench.runtime_api.kernel_engine import Grid, KernelEngine, Policies
from kernbench.runtime_api.kernel_plan import KernelPlan
from kernbench.runtime_api.launch_attributes import PLAIN_LAUNCH, LaunchAttributes
from kernbench.runtime_api.launcher import KernelLauncher
from kernbench.runtime_api.lent_memory import LentMemory
from kernbench.runtime_api.live_launch import LivePlan, Reach, run_on_copies, run_watched
from kernbench.runtime_api.multiprocessing import SpawnContext, SpawnException, StartedRank
from kernbench.runtime_api.operators import register_operators
from kernbench.runtime_api.process_group import ProcessGroup
from kernbench.runtime_api.rank_state import RankState
from kernbench.runtime_api.run import Run
from kernbench.runtime_api.streams import DeviceStream, Marker, WaitFor
from kernbench.runtime_api.tables import tables_of
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import Part, Signature, Work

__all__ = [
    "HOST_READS",
    "PLAIN_LAUNCH",
    "Collective",
    "DeviceStream",
    "Distributed",
    "Grid",
    "HostMemory",
    "KernelEngine",
    "KernelLauncher",
    "KernelPlan",
    "LaunchAttributes",
    "LentMemory",
    "LivePlan",
    "Marker",
    "Part",
    "Policies",
    "ProcessGroup",
    "RankState",
    "Reach",
    "ReduceOp",
    "Run",
    "RuntimeContext",
    "Signature",
    "SpawnContext",
    "SpawnException",
    "StartedRank",
    "Tensor",
    "WaitFor",
    "Work",
    "current_context",
    "not_fitting",
    "refuse_out_of_bounds",
    "register_operators",
    "run_on_copies",
    "run_watched",
    "tables_of",
]
