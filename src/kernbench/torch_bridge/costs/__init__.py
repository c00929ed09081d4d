"""What each operation of PyTorch costs on a device of the machine."""

from kernbench.torch_bridge.costs.operations import OperationCosts, num_bytes

__all__ = ["OperationCosts", "num_bytes"]
