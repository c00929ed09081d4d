"""How each source measured: what its measurements add to a kernel's own time.

A time under graph replay is the kernel's. An eager framework adds the host, which prepares the next
launch while the device works: a row takes the longer of the two.
"""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kernbench.hardware import Machine, SipSpec, changed_machine
from kernbench.kernel_time import kept_share, nearest_step
from validation.sources.tables import Entry, table

TimedBy = Literal["launches", "events", "profiler"]


class Harness(BaseModel):
    """What a source's way of measuring adds to a kernel, in microseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_us: float = Field(default=0.0, ge=0)
    """The least time of a row: one launch through the framework."""
    fixed_us: float = Field(default=0.0, ge=0)
    """Added to every kernel: what does not overlap the host's work."""
    weight_buffers: int = Field(default=0, ge=0)
    """How many weights are used in turn; warm if the cache holds them all. 0: always cold."""

    release: tuple[int, ...] = ()
    """The release of PyTorch whose kernels it timed; empty where the kernels are Triton's."""

    rate_share: float = Field(default=1.0, gt=0)
    """The speed of the measured kernel relative to ours: below 1 if its accesses are not wide."""

    keeps_clock: bool = False
    """Whether the source runs so little at a time that the clock does not throttle."""
    timed_by: TimedBy = "launches"
    """What it times: many launches; each between two events behind a busy queue, as ``do_bench``
    does (the first one's stamp stands before it); or, by a profiler, kernels from their first
    instruction to their last."""

    def met(self, machine: Machine, repeated: float = 1.0) -> Machine:
        """Return the machine as the source's kernels see it.

        ``repeated`` is the length of what the source repeats, as a multiple of the kernel's.
        """
        sustained = machine.sip.sustained
        if sustained is None or (repeated == 1 and not self.keeps_clock):
            return machine
        if self.keeps_clock:
            return changed_machine(machine, {"sip.sustained": None})
        half_us = round(float(sustained.half_time_us) / repeated, 3)
        return changed_machine(machine, {"sip.sustained.half_time_us": half_us})

    def time_us(self, kernel_us: float, machine: Machine) -> float:
        """Return the time that the source reports for a kernel of a machine."""
        return max(self.host_us, self.added_us(machine) + kernel_us / self.rate_share)

    def added_us(self, machine: Machine) -> float:
        """Return what the source's way of measuring adds to a kernel of a machine."""
        if self.timed_by == "events":
            return self.fixed_us + float(machine.sip.event_us)
        if self.timed_by == "profiler":
            return self.fixed_us - machine.sip.queued_front_end_ps / 1e6
        return self.fixed_us

    def cached(
        self, input_bytes: int, weight_bytes: int, sip: SipSpec
    ) -> tuple[tuple[int, Fraction], ...]:
        """Return the shares of a GEMM's input (0) and weights (1) that are still cached.

        Of weights it is what is left at their next turn; the input, which every launch reads, is
        cached if it fits together with all weights in rotation.
        """
        if not self.weight_buffers or sip.cache is None:
            return ()
        rotated = self.weight_buffers * weight_bytes
        warm = nearest_step(kept_share(rotated, sip.cache))
        fits = kept_share(input_bytes + rotated, sip.cache) == 1
        shares = ((0, Fraction(fits)), (1, warm))
        return tuple((param, fraction) for param, fraction in shares if fraction)


_KERNEL = Harness()


class MeasuredBy(Entry, Harness):
    """How a source measured on a machine."""

    op: str = ""
    """The operation of a table by operations: empty for all others."""

    def key(self) -> Hashable:
        return self.source, self.machine, self.op


class HostTime(Entry):
    """What a host takes at least for an operation, or for a kernel of one."""

    op: str = ""
    kernel: str = ""
    host_us: float = Field(gt=0)

    def key(self) -> Hashable:
        return self.source, self.machine, self.op, self.kernel


class ChunkList(Entry):
    """What a host takes to list chunks: at least, per sequence, per token."""

    least_us: float = Field(gt=0)
    sequence_us: float = Field(gt=0)
    token_us: float = Field(gt=0)


_FILE = "harness.yaml"
GEMM = {
    (measured.source, measured.machine): measured for measured in table(_FILE, "gemm", MeasuredBy)
}
"""Loops by source and machine, empty for all."""
MEMBOUND = {
    (measured.source, measured.machine, measured.op): measured
    for measured in table(_FILE, "membound", MeasuredBy)
}
"""Loops by source, machine and operation, empty for all others."""


def membound_harness(source: str, machine: str, op: str) -> Harness:
    """Return how a source measured an operation; kernel time for an unknown source."""
    keys = ((source, machine, op), (source, machine, ""), (source, "", ""))
    return next((MEMBOUND[key] for key in keys if key in MEMBOUND), _KERNEL)


MLA_HOSTS = {
    (host_time.op, host_time.kernel): host_time.host_us
    for host_time in table(_FILE, "mla", HostTime)
}
"""Rows of vLLM's MLA without a graph, by operation and kernel: launches take at least that."""
MLA_MODULE_HOSTS = {
    host_time.machine: host_time.host_us for host_time in table(_FILE, "mla_modules", HostTime)
}
"""A module of SGLang's MLA on a prompt without a graph, by machine."""
KDA_CONVOLUTION_HOSTS = {
    host_time.machine: host_time.host_us for host_time in table(_FILE, "kda_convolutions", HostTime)
}
"""What the host adds to vLLM's three convolutions of KDA, by machine."""
CHUNK_LIST_HOSTS = {
    chunk_list.machine: (chunk_list.least_us, chunk_list.sequence_us, chunk_list.token_us)
    for chunk_list in table(_FILE, "chunk_lists", ChunkList)
}
"""What the host takes to list the chunks of all sequences, by machine: at least, per sequence, per
token."""


def gemm_harness(source: str, machine: str) -> Harness:
    """Return how a source measured GEMMs; kernel time for an unknown source."""
    return GEMM.get((source, machine)) or GEMM.get((source, "")) or _KERNEL


SKEWS = {
    (host_time.source, host_time.op): host_time.host_us
    for host_time in table(_FILE, "skews", HostTime)
}
"""Collectives whose ranks entered one after the other, by source and operation: a row takes at
least that."""


def skew_us(source: str, op: str) -> float:
    """Return the least time of a source's collective; 0 where ranks entered together."""
    return SKEWS.get((source, op), 0.0)
