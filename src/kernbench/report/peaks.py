"""The peak rates of one SIP, which reports compare with."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.hardware import Machine
from kernbench.op_log import Template


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a SIP could do at most.

    Attributes:
        flops_per_ns: Rate of all GEMM engines for float16 operands, or for those that they are
            fastest with where they have none (1 000 is 1 TFLOP/s).
        hbm_bytes_per_ns: Nominal bandwidth of all cubes (1 is 1 GB/s).
    """

    flops_per_ns: float
    hbm_bytes_per_ns: float

    def bound_ps(self, template: Template) -> int:
        """Return the least time that the work needs: what scheduling computed, or the roofline.

        Scheduling knows the element types; without its word, float16 is assumed.
        """
        if template.bound_ps:
            return template.bound_ps
        compute = template.flops / self.flops_per_ns
        memory = template.hbm_bytes / self.hbm_bytes_per_ns
        return round(1000 * max(compute, memory))


def peaks_of(machine: Machine) -> Peaks:
    """Return the peaks of one SIP of ``machine``."""
    sip = machine.sip
    rates = sip.pe.gemm.flops_per_clock
    dtype = "float16" if "float16" in rates else max(rates, key=rates.__getitem__)
    return Peaks(
        flops_per_ns=float(sip.peak_flops_per_s(dtype) / 10**9),
        hbm_bytes_per_ns=float(sip.cube.hbm_bandwidth_gbps * sip.num_cubes),
    )
