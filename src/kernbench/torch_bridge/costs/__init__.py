"""What each operation of PyTorch costs on a device of the machine."""

from kernbench.torch_bridge.costs.families.recurrent import GATES, RecurrentKind
from kernbench.torch_bridge.costs.kept_calls import KeptCosts, timing_of_call
from kernbench.torch_bridge.costs.operands_of_gpus import check_operands
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.tensor_bytes import num_bytes
