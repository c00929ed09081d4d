"""``torch.distributed`` among simulated processes."""

from kernbench.torch_bridge.c10d.install import install, know_groups

__all__ = ["install", "know_groups"]
