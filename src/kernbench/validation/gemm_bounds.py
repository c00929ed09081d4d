"""Times that no schedule of a GEMM tile can beat, so that most tiles need not be timed."""

from __future__ import annotations

from kernbench.hardware import SipSpec
from kernbench.ops import GemmTile
from kernbench.validation.problem import Cached, Problem

_PART_BYTES = 4
"""Of an element of a part of C, with split-K."""


def least_ps(problem: Problem, tile: GemmTile, sip: SipSpec, cached: Cached = ()) -> int:
    """Return a lower bound of the modeled time of a product with a tile.

    It adds up what must follow each other: the front end, then the longest of the dots of the
    fullest PE, what all waves (but a last, partial one) move through the cache, and what HBM must
    move at least once; around the dots, the first load's latency and the last store's. A kernel
    of some load loses clock, and split-K's second kernel comes on top.
    """
    cores_ps = max(
        _dots_ps(problem, tile, sip) + _ends_ps(problem, tile, sip),
        _cache_ps(problem, tile, sip),
        _hbm_ps(problem, sip, cached),
    )
    total = float(sip.front_end_ps) + _hot_ps(problem, cores_ps, sip)
    if tile.split_k > 1:
        total += sip.queued_front_end_ps + _summing_ps(problem, tile, sip)
    return int(total)


def _programs(problem: Problem, tile: GemmTile) -> int:
    tiles, parts = tile.grid(problem.m, problem.n)
    return tiles * parts


def _dots_ps(problem: Problem, tile: GemmTile, sip: SipSpec) -> float:
    rounds = -(-_programs(problem, tile) // sip.num_pes)
    flops = 2 * tile.block_m * tile.columns * tile.block_k * tile.steps(problem.k)
    rate = sip.gemm_flops_per_clock(problem.dtype.name) * sip.pe.gemm.efficiency * sip.clock_ghz
    return rounds * flops * 1000 / float(rate)


def _ends_ps(problem: Problem, tile: GemmTile, sip: SipSpec) -> float:
    """Return the latency of a program's first load and of its last store."""
    nearest_ns = sip.cube.hbm_latency_ns
    if sip.cache is not None:
        nearest_ns = min(nearest_ns, sip.cache.latency_ns)
    return 2 * float(nearest_ns) * 1000


def _cache_ps(problem: Problem, tile: GemmTile, sip: SipSpec) -> float:
    """Return the time of what goes through the cache, a last wave beside others left out."""
    if sip.cache is None:
        return 0.0
    size = problem.dtype.itemsize
    columns, rows = -(-problem.n // tile.columns), -(-problem.m // tile.block_m)
    loaded = (problem.m * columns + problem.n * rows) * problem.k * size
    out = _PART_BYTES * tile.split_k if tile.split_k > 1 else problem.out.itemsize
    stored = problem.m * problem.n * out
    programs = _programs(problem, tile)
    last = programs % sip.num_pes
    if last and programs > sip.num_pes:
        height, width = min(tile.block_m, problem.m), min(tile.columns, problem.n)
        depth = min(tile.block_k * tile.steps(problem.k), problem.k)
        loaded -= last * (height + width) * depth * size
        stored -= last * height * width * out // tile.split_k
    # Loads and stores have queues of their own, and each its share of the cache.
    return max(loaded, stored, 0) * 1000 / float(sip.cache.bandwidth_gbps)


def _hbm_ps(problem: Problem, sip: SipSpec, cached: Cached) -> float:
    """Return the time that HBM takes for operands that the cache lacks, each once."""
    warm = dict(cached) if sip.cache is not None else {}
    moved = problem.input_bytes * (1 - float(warm.get(0, 0)))
    moved += problem.weight_bytes * (1 - float(warm.get(1, 0)))
    return moved * 1000 / float(sip.hbm_gbps)


def _hot_ps(problem: Problem, busy_ps: float, sip: SipSpec) -> float:
    """Return how long a kernel takes that would take ``busy_ps`` at full clock."""
    if sip.sustained is None:
        return busy_ps
    rate = sip.gemm_flops_per_clock(problem.dtype.name) * sip.num_pes * sip.clock_ghz
    least = 2 * problem.m * problem.n * problem.k * 1000 / float(rate)
    load = min(least / busy_ps / float(sip.sustained.full_load), 1.0)
    half_ps = float(sip.sustained.half_time_us) * 1e6
    return busy_ps * (1 + float(sip.sustained.clock_loss) * load * busy_ps / (busy_ps + half_ps))


def _summing_ps(problem: Problem, tile: GemmTile, sip: SipSpec) -> float:
    """Return what split-K's second kernel takes at least: its latencies, or its reads."""
    if sip.cache is None:
        return _ends_ps(problem, tile, sip)
    read = problem.m * problem.n * _PART_BYTES * tile.split_k
    # Its last wave counts as nothing.
    read -= sip.num_pes * 1024 * _PART_BYTES * tile.split_k
    return max(_ends_ps(problem, tile, sip), max(read, 0) * 1000 / float(sip.cache.bandwidth_gbps))
