"""``torch.distributed`` among simulated processes."""

from kernbench.torch_bridge.c10d.install import install

__all__ = ["install"]
