"""Schedules of operations that run kernels of a library: of the vendor's, or by their blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernbench.commands import Engine, Space
from kernbench.hardware import KernelLibrary, SipSpec
from kernbench.library_kernels import (
    BlockLaunch,
    KernelTime,
    LibraryKernel,
    Reuse,
    time_blocks,
    times_of,
)
from kernbench.op_log import Column, Limit, Template, added
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.costs.by_bytes import MEMBOUND


def timing_of_library(
    name: str,
    kernels: Sequence[LibraryKernel],
    sip: SipSpec,
    library: KernelLibrary,
    flops: int | None = None,
    reuse: Reuse | None = None,
) -> OperationTiming:
    """Return the schedules of an operation that launches kernels of a library in turn.

    ``flops`` are those of the operation, where its kernels compute more to fill up their tiles.

    Raises:
        UnknownNameError: The library has no such kernel.
    """
    for kernel in kernels:
        library.constants(kernel.name)

    def timed(queued: bool) -> Sequence[KernelTime]:
        return times_of(kernels, sip, library, queued, reuse)

    return OperationTiming(
        partial(_template, name, tuple(kernels), sip, timed, library.family_of, flops, reuse),
        partial(timing_of_library, name, kernels, sip, library, flops),
    )


def timing_of_blocks(
    name: str,
    launches: Sequence[BlockLaunch],
    sip: SipSpec,
    flops: int | None = None,
    reuse: Reuse | None = None,
) -> OperationTiming:
    """Return the schedules of an operation whose launches are known by their blocks, in turn.

    ``flops`` are those of the operation, which vector engines do.
    """

    def timed(queued: bool) -> Sequence[KernelTime]:
        return [
            time_blocks(launch, sip, queued or number > 0, reuse)
            for number, launch in enumerate(launches)
        ]

    return OperationTiming(
        partial(_template, name, tuple(launches), sip, timed, lambda _: MEMBOUND, flops, reuse),
        partial(timing_of_blocks, name, launches, sip, flops),
    )


def _template(
    name: str,
    kernels: Sequence[LibraryKernel] | Sequence[BlockLaunch],
    sip: SipSpec,
    timed: Callable[[bool], Sequence[KernelTime]],
    family_of: Callable[[str], str],
    flops: int | None,
    reuse: Reuse | None,
    queued: bool,
) -> Template:
    times = timed(queued)
    longest = max(range(len(times)), key=lambda number: times[number].total_us)
    limits: Counter[Limit] = Counter()
    for time in times:
        limits += Counter(
            {
                Limit.GEMM: _ps(time.tensor_us),
                Limit.MATH: _ps(time.vector_us),
                Limit.CACHE: _ps(time.cache_us),
                Limit.HBM: _ps(time.hbm_us),
                Limit.POWER: _ps(time.power_us),
            }
        )
    duration_ps = _ps(sum(time.total_us for time in times))
    limits[Limit.LAUNCH] = sip.queued_front_end_ps if queued else sip.front_end_ps
    busiest = max(limits[limit] for limit in _WORK)
    waits_ps = duration_ps - limits[Limit.LAUNCH] - busiest - limits[Limit.POWER]
    limits[Limit.LATENCY] = max(waits_ps, 0)
    read = sum(int(kernel.hbm_read_bytes) for kernel in kernels)
    written = sum(int(kernel.hbm_written_bytes) for kernel in kernels)
    if reuse is not None:
        read, written = (
            int(sum(moved)) for moved in zip(*(time.hbm_bytes for time in times), strict=True)
        )
    if flops is None:
        flops = sum(int(kernel.flops) for kernel in kernels)
    hbm_ps, gemm_ps, math_ps = limits[Limit.HBM], limits[Limit.GEMM], limits[Limit.MATH]
    busy = {Engine.DMA_IN: hbm_ps, Engine.DMA_OUT: hbm_ps, Engine.GEMM: gemm_ps}
    return Template(
        name=name,
        kind="kernel",
        family=family_of(kernels[longest].name),
        algorithm="",
        duration_ps=duration_ps,
        flops=flops,
        hbm_bytes=read + written,
        engine_busy_ps=busy | {Engine.MATH: math_ps},
        message_bytes=0,
        bound_ps=max(hbm_ps, gemm_ps),
        limits_ps=dict(limits),
        energy_pj=added(*(time.energy_pj for time in times)),
        make_rows=partial(
            _rows, duration_ps, (hbm_ps, hbm_ps, gemm_ps, math_ps), (read, written), flops
        ),
    )


_WORK = (Limit.GEMM, Limit.MATH, Limit.CACHE, Limit.HBM)


def _ps(time_us: float) -> int:
    return round(time_us * 1e6)


def _rows(
    end_ps: int, busy_ps: tuple[int, ...], moved: tuple[int, int], flops: int
) -> dict[str, Column]:
    hbm, tcm = Space.HBM.value, Space.TCM.value
    columns: dict[str, Any] = {
        "engine": (
            Engine.DMA_IN.value, Engine.DMA_OUT.value, Engine.GEMM.value, Engine.MATH.value,
        ),
        "kind": ("dma_read", "dma_write", "gemm", "math"),
        "start_ps": (0,) * 4,
        "end_ps": (end_ps,) * 4,
        "busy_ps": busy_ps,
        "bytes": (*moved, 0, 0),
        "flops": (0, 0, flops, 0),
        "src_space": (hbm, tcm, tcm, tcm),
        "dst_space": (tcm, hbm, tcm, tcm),
    }  # fmt: skip
    kept = [number for number, busy in enumerate(busy_ps) if busy or number < 2]
    return {name: np.array([values[number] for number in kept]) for name, values in columns.items()}
