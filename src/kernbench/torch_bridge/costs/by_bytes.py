"""The time of operations that stream their operands: of the bytes, or of the arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from kernbench.commands import Engine, MathClass, Space
from kernbench.hardware import SipSpec, ceil_ps, transfer_ps
from kernbench.library_kernels import Reuse
from kernbench.op_log import Column, Limit, Template, WorkCounts, pace_of
from kernbench.torch_bridge.base.operation_timing import OperationTiming

MEMBOUND = "membound"
"""The family of kernels whose time is that of their bytes, whose published errors theirs are."""
BY_BYTES_ALONE = ""
"""That of kernels of which nothing but their bytes is modeled: published errors are of others."""


def timing_by_bytes(
    name: str,
    sip: SipSpec,
    read_bytes: int,
    written_bytes: int,
    math_ps: int = 0,
    chain_ps: int = 0,
    elements: Mapping[str, float] | None = None,
    reuse: Reuse | None = None,
    *,
    family: str = MEMBOUND,
) -> OperationTiming:
    """Return the schedules of a kernel that streams its operands through HBM once.

    What the cache holds by ``reuse`` goes between it and the PEs only. Vector engines are busy for
    ``math_ps`` meanwhile, with so many ``elements`` by class of operation; loads that wait for each
    other take ``chain_ps``.
    """
    moved = (read_bytes, written_bytes)
    of_math = elements or {}
    return OperationTiming(
        partial(_template, name, sip, moved, math_ps, chain_ps, of_math, reuse, family),
        partial(timing_by_bytes, name, sip, *moved, math_ps, chain_ps, elements, family=family),
    )


_THREADS = 1024
"""The threads of a program each of which computes one position."""


def chain_ps(sip: SipSpec, planes: int, positions: int) -> int:
    """Return how long threads take that compute a position of one plane after another.

    Each plane's elements come from HBM; the next one's are asked for when they are there.
    """
    rounds = -(-positions // (_THREADS * sip.num_pes))
    return rounds * planes * sip.hbm_latency_ps


def vector_ps(sip: SipSpec, work: Mapping[MathClass, int], num_elements: int) -> int:
    """Return how long all vector engines of a SIP take for the given work on each element."""
    engine = sip.pe.math
    elements = -(-num_elements // sip.num_pes)
    cycles = sum(
        engine.startup_cycles
        - (-elements * count // getattr(engine.elements_per_clock, cost.value))
        for cost, count in work.items()
    )
    return sip.cycles_ps(cycles)


def _template(
    name: str,
    sip: SipSpec,
    moved: tuple[int, int],
    math_ps: int,
    chain_ps: int,
    elements: Mapping[str, float],
    reuse: Reuse | None,
    family: str,
    queued: bool,
) -> Template:
    port_bytes = sum(moved)
    port_ps = _port_ps(port_bytes, sip)
    read, written = map(round, moved if reuse is None else reuse.from_memory(*moved, sip))
    hbm_bytes = read + written
    hbm_ps = max(sip.hbm_stream_ps(hbm_bytes), sip.hbm_load_ps(read))
    start_ps = sip.queued_front_end_ps if queued else sip.front_end_ps
    cache_ps = port_ps if hbm_bytes < port_bytes else 0
    taken_ps = sip.hbm_latency_ps + max(hbm_ps, cache_ps, math_ps, chain_ps)
    work = WorkCounts(elements=elements, port_bytes=port_bytes, hbm_bytes=hbm_bytes)
    pace = pace_of(sip.power, work, taken_ps, max(math_ps, port_ps), start_ps)
    end_ps = start_ps + ceil_ps(taken_ps * pace.stretch)
    rows = partial(_rows, (start_ps, end_ps), (hbm_ps, math_ps), read, written)
    return Template(
        name=name,
        kind="kernel",
        family=family,
        algorithm="",
        duration_ps=end_ps,
        flops=0,
        hbm_bytes=hbm_bytes,
        engine_busy_ps={Engine.DMA_IN: hbm_ps, Engine.DMA_OUT: hbm_ps, Engine.MATH: math_ps},
        message_bytes=0,
        bound_ps=hbm_ps,
        limits_ps={
            Limit.HBM: hbm_ps,
            Limit.CACHE: cache_ps,
            Limit.MATH: math_ps,
            Limit.LAUNCH: start_ps,
            Limit.LATENCY: max(sip.hbm_latency_ps, chain_ps),
        }
        | ({Limit.POWER: end_ps - start_ps - taken_ps} if pace.stretch > 1 else {}),
        make_rows=rows,
        energy_pj=pace.energy_pj,
    )


def _port_ps(size_bytes: int, sip: SipSpec) -> int:
    """Return how long bytes take through the cache and the ports of all PEs."""
    gbps = sip.pe.dma_port_gbps * sip.num_pes
    if sip.cache is not None:
        gbps = min(gbps, sip.cache.bandwidth_gbps)
    return transfer_ps(size_bytes, gbps)


def _rows(
    span_ps: tuple[int, int], busy_ps: tuple[int, int], read_bytes: int, written_bytes: int
) -> dict[str, Column]:
    hbm_ps, math_ps = busy_ps
    num_rows = 3 if math_ps else 2
    hbm, tcm = Space.HBM.value, Space.TCM.value
    columns: dict[str, Any] = {
        "engine": (Engine.DMA_IN.value, Engine.DMA_OUT.value, Engine.MATH.value),
        "kind": ("dma_read", "dma_write", "math"),
        "start_ps": (span_ps[0],) * 3,
        "end_ps": (span_ps[1],) * 3,
        "busy_ps": (hbm_ps, hbm_ps, math_ps),
        "bytes": (read_bytes, written_bytes, 0),
        "src_space": (hbm, tcm, tcm),
        "dst_space": (tcm, hbm, tcm),
    }
    return {name: np.array(values[:num_rows]) for name, values in columns.items()}
