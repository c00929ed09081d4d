"""How long a launch takes whose blocks of threads go over memory: by its geometry alone.

A block loads what its threads have under way, waits for it, and asks for the next. A PE holds as
many blocks as its warps allow. Few blocks, or few bytes under way, are slow on any bandwidth; many
go as fast as HBM or the cache move their bytes. Nothing here is fitted to an operation: machines
say their latencies, ATen's sources the geometry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench.hardware import SipSpec
from kernbench.library_kernels.engine import KernelTime, makespan, norm_of, stretch
from kernbench.library_kernels.reuse import Reuse
from kernbench.op_log import WorkCounts, pace_of

_TRIP_CYCLES = 400
"""What a trip of a loop takes besides the latency of an idle device's memory: pages, addresses, the
arithmetic that the next trip waits for. ATen's moments of 128 groups, 512 threads each (KernelBench
level1/35 at 80c03d44, 87fc84ca, dacd881c, less its other kernel), ask for 280 on H100 and A6000,
490 on L40S, 560 on A100."""
LANES = 128
"""Lanes that a PE issues for in a cycle: those of four warps."""
_OVERLAP = 3.0
"""How well waits of blocks and the bytes of HBM overlap, as in ``streams``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A loop of each block over bytes of its own."""

    loaded_bytes: float
    """Bytes that a block loads."""
    under_way: float
    """The bytes of a block that it waits for at a time."""
    stored_bytes: float = 0.0
    """Bytes that a block stores; nothing waits for them."""
    cached: float = 0.0
    """Share of the loaded bytes that comes from the shared cache."""
    serial_cycles: float = 0.0
    """What each trip takes besides, one trip after another: a scan's steps, a barrier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLaunch:
    """One launch, all of whose blocks do the same."""

    name: str
    blocks: int
    threads: int
    sweeps: tuple[Sweep, ...]
    serial_cycles: float = 0.0
    """What a block takes besides its sweeps: shuffles and barriers, one after another."""
    issue_cycles: float = 0.0
    """In which a PE issues the instructions of a block; other blocks' come before or after."""
    most_resident: int | None = None
    """The blocks of a PE by registers or shared memory, where these are fewer than by warps."""
    hbm_read_bytes: float
    """Bytes of all blocks, each time that they come from HBM."""
    hbm_written_bytes: float = 0.0
    multiplies: str = ""
    """The dtype that its instructions multiply without a pause, at the clock that this leaves."""
    hbm_share: float = 1.0
    """The share of a stream's bandwidth: less where blocks take short runs of bytes far from each
    other."""

    flops = 0
    """Operations of the matrix engines."""

    def resident(self, sip: SipSpec) -> int:
        """Return how many blocks a PE holds at a time."""
        held = sip.pe.resident_programs
        if (warps := sip.pe.warps) is not None:
            of_block = -(-self.threads // warps.lanes)
            held = min(warps.resident // of_block, warps.resident_programs)
        return max(min(held, self.most_resident or held, -(-self.blocks // sip.num_pes)), 1)


def time_blocks(
    launch: BlockLaunch, sip: SipSpec, queued: bool = True, reuse: Reuse | None = None
) -> KernelTime:
    """Return the time of a launch; ``queued`` and ``reuse`` are as for ``time_kernel``."""
    together = launch.resident(sip)
    clocks_per_us = float(sip.clock_ghz) * 1e3
    alone_us = launch.serial_cycles / clocks_per_us
    port_bytes = 0.0
    for sweep in launch.sweeps:
        trips = math.ceil(sweep.loaded_bytes / sweep.under_way)
        trip_us = wait_us(sip, sweep.cached) + sweep.serial_cycles / clocks_per_us
        alone_us += trips * trip_us
        port_bytes += sweep.loaded_bytes + sweep.stored_bytes
    vector_us = launch.issue_cycles / clocks_per_us
    port_us = port_bytes / (float(sip.pe.dma_port_gbps) * 1e3)
    # What a PE does for one block after another leaves no place empty in the last wave.
    tiles_us = max(
        makespan([(launch.blocks, alone_us)], sip.num_pes * together),
        makespan([(launch.blocks, max(port_us, vector_us))], sip.num_pes),
    )
    port_bytes *= launch.blocks
    cache_us = 0.0
    if sip.cache is not None:
        cache_us = port_bytes / (float(sip.cache.bandwidth_gbps) * 1e3)
    moved = (launch.hbm_read_bytes, launch.hbm_written_bytes)
    if reuse is not None:
        moved = reuse.from_memory(*moved, sip)
    read, written = map(round, moved)
    hbm_us = max(sip.hbm_stream_ps(read + written), sip.hbm_load_ps(read)) / 1e6 / launch.hbm_share
    start_ps = sip.queued_front_end_ps if queued else sip.front_end_ps
    start_us = (start_ps + sip.hbm_latency_ps) / 1e6
    busy_us = norm_of((tiles_us, cache_us, hbm_us), _OVERLAP)
    mean_vector_us = vector_us * launch.blocks / sip.num_pes
    if launch.multiplies:
        hot = stretch(sip, launch.multiplies, mean_vector_us, busy_us)
        busy_us = norm_of((tiles_us * hot, cache_us * hot, hbm_us), _OVERLAP)
    work = WorkCounts(
        elements={"simple": mean_vector_us * clocks_per_us * sip.num_pes * LANES},
        port_bytes=port_bytes,
        hbm_bytes=sum(moved),
    )
    core_ps = round(max(mean_vector_us, cache_us) * 1e6)
    pace = pace_of(sip.power, work, round(busy_us * 1e6), core_ps, round(start_us * 1e6))
    power_us = busy_us * (float(pace.stretch) - 1)
    return KernelTime(
        total_us=start_us + busy_us + power_us,
        power_us=power_us,
        energy_pj=pace.energy_pj,
        tiles_us=tiles_us,
        tensor_us=0.0,
        vector_us=mean_vector_us,
        cache_us=cache_us,
        hbm_us=hbm_us,
        start_us=start_us,
        hbm_bytes=moved,
    )


def wait_us(sip: SipSpec, cached: float = 0.0) -> float:
    """Return how long a trip of a loop takes whose loads are one access of each thread.

    ``cached`` is the share of them that the shared cache serves.
    """
    warps = sip.pe.warps
    if warps is None:
        return sip.hbm_latency_ps / 1e6
    cycles = cached * warps.cache_latency_cycles + (1 - cached) * warps.hbm_latency_cycles
    return (cycles + _TRIP_CYCLES) / (float(sip.clock_ghz) * 1e3)
