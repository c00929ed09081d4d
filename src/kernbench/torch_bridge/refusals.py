"""What a PyTorch program may ask for and a simulated device does not do."""

from __future__ import annotations

from kernbench.errors import KernbenchError


class UnsupportedTorchError(KernbenchError, NotImplementedError):
    """A part of PyTorch that is refused in a simulated process; says why and what to do."""


class MixedDevicesError(KernbenchError, RuntimeError):
    """An operation got tensors of several devices, or of the host beside some of a device."""


WITHOUT_SYMMETRIC_MEMORY = (
    "ranks of PyTorch programs cannot map each other's memory; use torch.distributed's collectives"
)
