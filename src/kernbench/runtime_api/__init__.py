"""The runtime: the object that a bench uses as ``torch``, and its tensors."""

from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.current import current_context
from kernbench.runtime_api.distributed import Distributed, ReduceOp
from kernbench.runtime_api.host_read import HOST_READS
from kernbench.runtime_api.kernel_engine import KernelEngine, Policies
from kernbench.runtime_api.launch_attributes import LaunchAttributes
from kernbench.runtime_api.live_launch import LivePlan
from kernbench.runtime_api.multiprocessing import SpawnContext, SpawnException
from kernbench.runtime_api.process_group import ProcessGroup
from kernbench.runtime_api.run import Run
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import Work

__all__ = [
    "HOST_READS",
    "Distributed",
    "KernelEngine",
    "LaunchAttributes",
    "LivePlan",
    "Policies",
    "ProcessGroup",
    "ReduceOp",
    "Run",
    "RuntimeContext",
    "SpawnContext",
    "SpawnException",
    "Tensor",
    "Work",
    "current_context",
]
