"""What each operation of PyTorch costs on a device of the machine."""

from kernbench.torch_bridge.costs.kept_calls import KeptCosts, timing_of_call
from kernbench.torch_bridge.costs.operands_of_gpus import check_operands
from kernbench.torch_bridge.costs.operations import OperationCosts, num_bytes
from kernbench.torch_bridge.costs.recurrent import GATES, RecurrentKind

__all__ = [
    "GATES",
    "KeptCosts",
    "OperationCosts",
    "RecurrentKind",
    "check_operands",
    "num_bytes",
    "timing_of_call",
]
