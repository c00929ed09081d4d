"""Which launches of ATen's own kernels an operation is, by the arguments of a call."""

from kernbench.torch_bridge.costs.aten.calls import launches_of

__all__ = ["launches_of"]
