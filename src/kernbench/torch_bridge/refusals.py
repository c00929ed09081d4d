"""What a PyTorch program may ask for and a simulated device does not do."""

from __future__ import annotations

from kernbench.errors import KernbenchError


class UnsupportedTorchError(KernbenchError, NotImplementedError):
    """A part of PyTorch that is refused in a simulated process; says why and what to do."""
