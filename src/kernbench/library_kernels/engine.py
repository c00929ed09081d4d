"""How long a kernel of a vendor library takes: its tiles on the PEs, beside caches and HBM.

A PE runs ``resident`` tiles at a time. A trip of a tile takes at least its own chain (matrix
engine, vector engine, latency, one after another) and at least what the busiest unit of the PE
needs for all resident tiles: with one tile nothing overlaps, with enough of them the busiest unit
decides. Tiles go to the PE that is free first, the longest first; of a kernel that starts them in
another order, a long one is the last and ends alone. Meanwhile the cache and HBM move the kernel's
bytes; the slowest of the three decides, or, where a kernel says that they overlap less than
perfectly, somewhat more than it.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernbench.kernel_time import still_there
from kernbench.op_log import Energy, WorkCounts, pace_of

if TYPE_CHECKING:
    from kernbench.hardware import KernelConstants, SipSpec
    from kernbench.library_kernels.reuse import Reuse
    from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

_LANES, _WIDE_BYTES = 32, 16
"""The lanes of a warp, and the most bytes that one of them loads at a time."""
_AT_LIMIT_US = 50.0
"""In which a board meets half of its limit: L4, by products of float32 (neusight-linear)."""
_COUNTED = 6
"""Up to so many rounds of tiles are placed one by one; of more, the mean round is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """Where the time of one launch goes, in microseconds."""

    total_us: float
    """The time with the machine's front end and latency."""
    tiles_us: float
    """What the PEs take for all tiles."""
    tensor_us: float
    """How long the matrix engines are busy, on average."""
    vector_us: float
    """How long the vector engines are busy, on average."""
    cache_us: float
    """How long the cache needs for what the PEs load and store."""
    hbm_us: float
    """How long HBM needs for the kernel's distinct bytes."""
    start_us: float
    """Before the first tile and after the last: front end, latency, what a launch costs."""
    power_us: float = 0.0
    """What of the total a lower clock adds, under a power cap."""
    hbm_bytes: tuple[float, float] = (0.0, 0.0)
    """The part of the kernel's distinct bytes, read and written, that HBM moves."""
    energy_pj: Mapping[Energy, int] = field(default_factory=dict)
    """What it takes beside the idle device; empty where the machine says nothing of energy."""


def time_kernel(
    kernel: LibraryKernel,
    sip: SipSpec,
    constants: KernelConstants,
    queued: bool = True,
    reuse: Reuse | None = None,
) -> KernelTime:
    """Return the time of a launch; ``queued`` says whether it follows another kernel directly.

    ``reuse`` says what the operation before has left in the cache, in an eager program.

    Raises:
        MachineError: The machine's matrix engine has no rate for a dtype of the kernel.
    """
    num_pes = sip.num_pes
    together = min(kernel.resident, max(1, math.ceil(kernel.num_tiles / num_pes)))
    row_us = float(constants.row_ns) / 1e3
    lengths: list[tuple[int, float]] = []
    tensor_us = vector_us = alone_us = 0.0
    trip: Trip | None = None
    matrix = vector = step_us = step_alone_us = 0.0
    for tiles in kernel.tiles:
        if tiles.trip is not trip:  # tiles of a kernel mostly share theirs
            trip = tiles.trip
            matrix, vector = _trip_us(trip, sip, constants)
            step_us = _step_us(matrix, vector, trip, sip, constants, together)
            step_alone_us = _step_us(matrix, vector, trip, sip, constants, 1)
        rows_us = row_us * tiles.rows
        ends_us = rows_us + _ends_us(tiles, kernel, sip, constants, together)
        lengths.append((tiles.count, tiles.trips * step_us + ends_us))
        ends_us = rows_us + _ends_us(tiles, kernel, sip, constants, 1)
        alone_us = max(alone_us, tiles.trips * step_alone_us + ends_us)
        tensor_us += tiles.count * tiles.trips * matrix / num_pes
        vector_us += tiles.count * tiles.trips * vector / num_pes
    slots = num_pes * together
    tiles_us = makespan(lengths, slots)
    if not kernel.longest_first and len(lengths) > 1 and kernel.num_tiles > slots:
        total_us = sum(count * length for count, length in lengths)
        longest_us = max(length for _, length in lengths)
        tiles_us = max(total_us / slots + alone_us * (1 - 1 / slots), longest_us)
    cache_us = 0.0
    if sip.cache is not None:
        rate = float(sip.cache.bandwidth_gbps) * 1e3 * float(constants.cache_share)
        cache_us = kernel.port_bytes / rate
    moved = _from_memory(kernel, sip, reuse)
    hbm_us = sum(moved) / _hbm_bytes_per_us(kernel, sip, constants)
    ramp_us = float(constants.ramp_us)
    if ramp_us:
        hbm_us += ramp_us * hbm_us / (hbm_us + ramp_us)
    front_ps = sip.queued_front_end_ps if queued else sip.front_end_ps
    start_us = float(constants.fixed_us) + (front_ps + sip.hbm_latency_ps) / 1e6
    busy_us = _busy_us(kernel, slots, (tiles_us, cache_us, hbm_us))
    hot = stretch(sip, kernel.tiles[0].trip.dtype, tensor_us, busy_us, kernel.loss_share)
    # HBM has a clock of its own.
    on_clock_us = max(tiles_us, cache_us) * hot
    busy_us = _busy_us(kernel, slots, (tiles_us * hot, cache_us * hot, hbm_us))
    energy_pj: Mapping[Energy, int] = {}
    power_us = 0.0
    if sip.power is not None:
        work = _work(kernel, sum(moved))
        core_us = min(on_clock_us + busy_us - max(on_clock_us, hbm_us), busy_us)
        taken_ps, core_ps = (round(number * 1e6) for number in (busy_us, core_us))
        pace = pace_of(sip.power, work, taken_ps, core_ps, round(start_us * 1e6))
        energy_pj = pace.energy_pj
        power_us = busy_us * (float(pace.stretch) - 1)
    busy_us += power_us
    return KernelTime(
        total_us=start_us + busy_us,
        power_us=power_us,
        energy_pj=energy_pj,
        tiles_us=tiles_us,
        tensor_us=tensor_us,
        vector_us=vector_us,
        cache_us=cache_us,
        hbm_us=hbm_us,
        start_us=start_us,
        hbm_bytes=moved,
    )


def _from_memory(kernel: LibraryKernel, sip: SipSpec, reuse: Reuse | None) -> tuple[float, float]:
    """Return the bytes, of those that a kernel reads and writes, that HBM moves."""
    read, written = kernel.hbm_read_bytes, kernel.hbm_written_bytes
    if kernel.warm:
        missed = 1 - kept_share(kernel.hbm_bytes, sip)
        return missed * read, missed * written
    if reuse is None:
        return read, written
    if not any(tile.trip.flops or tile.trip.simple for tile in kernel.tiles):
        # What only copies reads no weights.
        reuse = reuse._replace(cold_bytes=0)
    return reuse.from_memory(read, written, sip)


def _work(kernel: LibraryKernel, hbm_bytes: float) -> WorkCounts:
    """Return what all tiles do, and the bytes that HBM moves."""
    flops, elements = Counter[str](), Counter[str]()
    for tiles in kernel.tiles:
        trips, trip = tiles.count * tiles.trips, tiles.trip
        # Counters of the library's kernels hold fractions.
        flops[trip.dtype] += trips * trip.flops  # type: ignore[assignment]
        elements["transcendental"] += trips * trip.transcendental  # type: ignore[assignment]
        elements["simple"] += trips * trip.simple  # type: ignore[assignment]
    return WorkCounts(
        flops=flops, elements=elements, port_bytes=kernel.port_bytes, hbm_bytes=hbm_bytes
    )


def makespan(lengths: Sequence[tuple[int, float]], slots: int) -> float:
    """Return when the last of (count, length) jobs ends on so many slots, the longest first."""
    count = sum(number for number, _ in lengths)
    if not count:
        return 0.0
    longest = max(length for _, length in lengths)
    if count <= slots:
        return longest
    if len(lengths) == 1:
        return -(-count // slots) * longest
    if count > _COUNTED * slots:
        total = sum(number * length for number, length in lengths)
        # The last jobs are the shortest: half of one is what slots wait for each other.
        return max(total / slots + min(length for _, length in lengths) / 2, longest)
    ends = [0.0] * slots
    for number, length in sorted(lengths, key=lambda job: -job[1]):
        for _ in range(number):
            heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def kept_share(num_bytes: float, sip: SipSpec) -> float:
    """Return the share of bytes that the cache still holds when they are asked for again."""
    return 0.0 if sip.cache is None else still_there(num_bytes / sip.cache.held_bytes)


def norm_of(times_us: tuple[float, ...], overlap: float) -> float:
    """Return how long parts take that overlap so well: the norm of that power of their times."""
    longest = max(times_us)
    if math.isinf(overlap) or not longest:
        return longest
    shares: float = sum((number / longest) ** overlap for number in times_us)
    return float(longest * shares ** (1 / overlap))


def _busy_us(kernel: LibraryKernel, slots: int, times_us: tuple[float, float, float]) -> float:
    """Return what tiles, cache and HBM take beside each other, or the sum of that over waves."""
    full, rest = divmod(kernel.num_tiles, slots)
    if not kernel.in_waves or not full:
        return norm_of(times_us, kernel.overlap)
    tile_us = times_us[0] / (full + bool(rest))
    waves = [
        norm_of((tile_us, *(us * tiles / kernel.num_tiles for us in times_us[1:])), kernel.overlap)
        for tiles in (slots, rest)
    ]
    return full * waves[0] + (waves[1] if rest else 0.0)


def _trip_us(trip: Trip, sip: SipSpec, constants: KernelConstants) -> tuple[float, float]:
    """Return how long a trip keeps the matrix and the vector engine of a PE busy."""
    clocks_per_us = float(sip.clock_ghz) * 1e3
    matrix = vector = 0.0
    if trip.flops:
        rate = sip.gemm_flops_per_clock(trip.dtype) * float(constants.tensor_share)
        matrix = trip.flops / rate / clocks_per_us
    if trip.transcendental or trip.simple:
        rates = sip.pe.math.elements_per_clock
        clocks = trip.transcendental / rates.transcendental + trip.simple / rates.simple
        vector = clocks / float(constants.vector_share) / clocks_per_us
    return matrix, vector


def _step_us(
    matrix: float, vector: float, trip: Trip, sip: SipSpec, constants: KernelConstants, tiles: int
) -> float:
    port = trip.loaded_bytes / (float(sip.pe.dma_port_gbps) * 1e3)
    port = max(port, _narrow_us(trip, sip, constants))
    latency = (float(constants.trip_ns) + trip.missed * float(constants.miss_ns)) / 1e3
    arithmetic = max(matrix, vector) if trip.ping_pong else matrix + vector
    chain = max(arithmetic, latency) if trip.pipelined else arithmetic + latency
    return max(tiles * max(matrix, vector, port), chain)


def _narrow_us(trip: Trip, sip: SipSpec, constants: KernelConstants) -> float:
    """Return how long a PE issues loads that are narrower than its lanes could make."""
    if trip.access_bytes >= _WIDE_BYTES:
        return 0.0
    accesses = trip.loaded_bytes / (trip.access_bytes * _LANES)
    return accesses * float(constants.narrow_access_clocks) / (float(sip.clock_ghz) * 1e3)


def _ends_us(
    tiles: Tiles, kernel: LibraryKernel, sip: SipSpec, constants: KernelConstants, together: int
) -> float:
    """Return what a tile takes before and after its loop, beside so many that share the port."""
    ends_us = float(constants.tile_ns) / 1e3
    rate = float(sip.pe.dma_port_gbps) * 1e3 * float(constants.store_share)
    stored = together * tiles.stored_bytes
    if kernel.stores_last:
        rate = float(sip.cube.hbm_bandwidth_gbps) * sip.num_cubes * 1e3 / sip.num_pes
        stored *= 1 - kept_share(kernel.hbm_written_bytes, sip)
    return ends_us + (stored / rate if rate else 0.0)


def _hbm_bytes_per_us(kernel: LibraryKernel, sip: SipSpec, constants: KernelConstants) -> float:
    """Return what HBM gives: no more than the ports of the PEs that have a tile."""
    cube = sip.cube
    peak = float(cube.hbm_bandwidth_gbps) * sip.num_cubes * float(constants.memory_share)
    ports = min(kernel.num_tiles, sip.num_pes) * float(sip.pe.dma_port_gbps)
    return min(peak, max(ports, 1e-9)) * 1e3


def stretch(
    sip: SipSpec, dtype: str, worked_us: float, busy_us: float, share: float = 1.0
) -> float:
    """Return how many times longer a kernel takes that loses a share of what a hot clock loses."""
    sustained = sip.sustained
    if sustained is None or not worked_us:
        return 1.0
    load = min(worked_us / busy_us / float(sustained.full_load), 1.0)
    loss, half_us = float(sustained.clock_loss), float(sustained.half_time_us)
    if dtype == "float32" and sustained.float32_clock_loss is not None:
        loss, half_us = float(sustained.float32_clock_loss) * share, min(half_us, _AT_LIMIT_US)
    return 1 + loss * load * busy_us / (busy_us + half_us)
