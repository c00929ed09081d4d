"""What each operation of PyTorch costs on a device of the machine."""

from kernbench.torch_bridge.costs.kept_calls import KeptCosts, timing_of_call
from kernbench.torch_bridge.costs.operations import OperationCosts, num_bytes

__all__ = ["KeptCosts", "OperationCosts", "num_bytes", "timing_of_call"]
