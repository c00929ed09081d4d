"""The runtime: the object that a bench uses as ``torch``, and its tensors."""

from kernbench.runtime_api.collective import Collective
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.current import current_context
from kernbench.runtime_api.distributed import Distributed, ReduceOp
from kernbench.runtime_api.host_read import HOST_READS
from kernbench.runtime_api.kernel_engine import KernelEngine, Policies
from kernbench.runtime_api.launch_attributes import LaunchAttributes
from kernbench.runtime_api.live_launch import LivePlan
from kernbench.runtime_api.multiprocessing import SpawnContext, SpawnException
from kernbench.runtime_api.process_group import ProcessGroup
from kernbench.runtime_api.rank_state import RankState
from kernbench.runtime_api.run import Run
from kernbench.runtime_api.streams import DeviceStream, Marker, WaitFor
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import Part, Signature, Work

__all__ = [
    "HOST_READS",
    "Collective",
    "DeviceStream",
    "Distributed",
    "KernelEngine",
    "LaunchAttributes",
    "LivePlan",
    "Marker",
    "Part",
    "Policies",
    "ProcessGroup",
    "RankState",
    "ReduceOp",
    "Run",
    "RuntimeContext",
    "Signature",
    "SpawnContext",
    "SpawnException",
    "Tensor",
    "WaitFor",
    "Work",
    "current_context",
]
