"""How each source measured: what belongs to the measurement, not to the machine.

A time under graph replay is the kernel's. An eager framework adds the host: it prepares the next
launch while the device works, so a row takes the longer of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kernbench.hardware import SipSpec


@dataclass(frozen=True, slots=True)
class Harness:
    """What a source's way of measuring adds to a kernel, in microseconds."""

    host_us: float = 0.0
    """Least time of a row: one launch's way through the framework."""
    fixed_us: float = 0.0
    """Added to every kernel: what the host's work does not hide."""
    weight_buffers: int = 0
    """Weights in rotation; where the cache holds them all, they are warm. 0: always cold."""

    def time_us(self, kernel_us: float) -> float:
        return max(self.host_us, self.fixed_us + kernel_us)

    def warm_share(self, weight_bytes: int, sip: SipSpec) -> Fraction:
        """Return the share of the weights that the cache still has when their turn comes again."""
        if not self.weight_buffers or sip.cache is None:
            return Fraction(0)
        held = sip.cache.capacity_mib * 2**20 * sip.cache.retained_share
        share = 2 - Fraction(self.weight_buffers * weight_bytes) / held
        # In sixteenths, so that schedules are met again.
        return Fraction(round(max(Fraction(0), min(share, Fraction(1))) * 16), 16)


_KERNEL = Harness()

# GEMM, by source and machine ("" for all). Kernel clocks and graph replay need nothing; eager rows
# carry the launch that the source itself states or that its smallest rows show.
GEMM: dict[tuple[str, str], Harness] = {
    ("aic-gemm", ""): Harness(weight_buffers=6),
    ("llmcompass-fig5ab", "a100-sxm-80g"): Harness(fixed_us=18.0),
}


def gemm_harness(source: str, machine: str) -> Harness:
    """Return how a source measured GEMMs; kernel time for one that is not known."""
    return GEMM.get((source, machine)) or GEMM.get((source, "")) or _KERNEL
