"""What each operation of PyTorch costs on a device of the machine."""

from kernbench.torch_bridge.costs.operations import OperationCosts, num_bytes
from kernbench.torch_bridge.costs.timing import OperationTiming

__all__ = ["OperationCosts", "OperationTiming", "num_bytes"]
