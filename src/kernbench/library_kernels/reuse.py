"""What a kernel of an eager program finds in the cache: what the operation before it has left."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from kernbench.hardware import SipSpec
from kernbench.library_kernels.engine import kept_share


class AutogradPhase(IntEnum):
    """When a program runs an operation, which decides how soon its memory is used again."""

    UNRECORDED = 0
    """No autograd: results are read by the next operation, and then their memory is reused."""
    RECORDED = 1
    """Recorded by autograd: results are read by the next operation, and kept for the backward."""
    BACKWARD = 2
    """In a backward: gradients are used at once, what the forward kept comes from HBM."""


class Reuse(NamedTuple):
    """The operation before left in the cache what fits there; ``cold_bytes`` are not of it."""

    phase: AutogradPhase
    cold_bytes: int = 0
    """The bytes of what is read that are cold: a weight, or what the forward has kept."""
    cold_params: tuple[int, ...] | None = None
    """The cold parameters of a Triton kernel; None where they are not known."""

    def from_memory(
        self, read_bytes: float, written_bytes: float, sip: SipSpec
    ) -> tuple[float, float]:
        """Return the bytes, of those that a kernel reads and writes, that HBM moves.

        Bytes that are written over while the cache holds them never reach HBM.
        """
        kept = kept_share(read_bytes + written_bytes, sip)
        fresh = max(read_bytes - self.cold_bytes, 0)
        if self.phase is AutogradPhase.BACKWARD:
            # As much as is written: the gradient that the operation before has made.
            fresh = min(fresh, written_bytes)
        reused = 0.0 if self.phase is AutogradPhase.RECORDED else written_bytes
        return read_bytes - kept * fresh, written_bytes - kept * reused
