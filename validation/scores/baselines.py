"""Two closed-form baselines that the model has to beat on the same rows.

The *roofline* is the longer of the compute and the memory time at the vendor's peaks. The *fitted*
baseline is ``t0 + max(a * compute, b * memory)``, with its three parameters fitted to the very rows
that it is then scored on; for rows that only move bytes (elementwise operations, collectives) that
is a line ``alpha + beta * bytes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernbench.accuracy.rows import Category, Machines, Row
from kernbench.accuracy.score import Errors, Scored, errors_of
from kernbench.errors import KernbenchError
from kernbench.hardware import Machine

Array = npt.NDArray[np.float64]

_GEMM_RATES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8": "float8_e4m3fn"}
_LEAST_PARAMETERS = 4


@dataclass(frozen=True, slots=True)
class Baselines:
    """The errors of the two baselines; None where they have no answer."""

    roofline: Errors | None
    fitted: Errors | None


def baselines(scored: Sequence[Scored], machines: Machines) -> Baselines:
    """Return the errors of the baselines on the rows of one group that the model predicts."""
    rows = [each.row for each in scored if each.answer.time_us is not None]
    ideal = [ideal_us(row, machines) for row in rows]
    known = [(row, times) for row, times in zip(rows, ideal, strict=True) if times is not None]
    if not known:
        return Baselines(None, None)
    measured = np.array([row.time_us for row, _ in known])
    times = np.array([each for _, each in known])
    fitted = np.zeros(len(known))
    parts: dict[str, list[int]] = {}
    for index, (row, _) in enumerate(known):
        parts.setdefault(row.fields.get("n_ranks", ""), []).append(index)
    for part in parts.values():
        fitted[part] = fit(times[part], measured[part])
    return Baselines(errors_of(times.max(axis=1), measured), errors_of(fitted, measured))


def ideal_us(row: Row, machines: Machines) -> tuple[float, float] | None:
    """Return the compute and the memory time of a row at peak rates, None if they are unknown."""
    try:
        machine = machines.machine_of(row.device)
        if row.category is Category.GEMM:
            m, n, k = (row.integer(name) for name in ("m", "n", "k"))
            peak = machine.sip.peak_flops_per_s(_GEMM_RATES.get(row.dtype, row.dtype))
            return 2e6 * m * n * k / float(peak), _hbm_us(row, machine)
        if row.category is Category.MEMBOUND:
            return 0.0, _hbm_us(row, machine)
        if row.category is Category.COLLECTIVES:
            return 0.0, _link_us(row, machines)
    except KernbenchError:
        return None
    return None


def _hbm_us(row: Row, machine: Machine) -> float:
    cube = machine.sip.cube
    return row.integer("bytes") / float(cube.hbm_bandwidth_gbps * machine.sip.num_cubes) / 1e3


def _link_us(row: Row, machines: Machines) -> float:
    ranks = row.integer("n_ranks")
    machine = machines.machine_of(row.device, ranks)
    fastest = max((float(link.bandwidth_gbps) for link in machine.links), default=0.0)
    if not fastest:
        raise KernbenchError(f"machine {machine.name} has no links")
    rounds = {"all_reduce": 2.0, "broadcast": ranks / max(ranks - 1, 1)}.get(row.op, 1.0)
    return row.integer("bytes") * rounds * (ranks - 1) / ranks / fastest / 1e3


def fit(times: Array, measured: Array) -> Array:
    """Return the times of ``t0 + max(a * compute, b * memory)`` with the best parameters."""
    if len(measured) < _LEAST_PARAMETERS:
        return np.asarray(times.max(axis=1))
    compute, memory = times[:, 0], times[:, 1]
    span = np.geomspace(0.5, 8.0, 25)
    starts = np.concatenate(([0.0], np.quantile(measured, 0.02) * np.linspace(0.2, 1.1, 10)))
    best, found = np.inf, np.asarray(times.max(axis=1))
    centre, width = np.array([1.0, 1.0, 1.0]), 1.0
    for _ in range(3):
        for a in span**width * centre[0] if compute.any() else (0.0,):
            bound = np.maximum(a * compute, (span**width * centre[1])[:, None] * memory)
            modeled = bound[None] + (starts * centre[2])[:, None, None]
            off = np.abs(modeled / measured - 1).mean(axis=2)
            where = np.unravel_index(int(off.argmin()), off.shape)
            if off[where] < best:
                best, found = float(off[where]), modeled[where]
                kept = np.array([a or 1.0, (span**width * centre[1])[where[1]], 1.0])
        centre[:2] = kept[:2]
        width /= 6
        # Around the best so far, in both directions.
        span = np.geomspace(1 / 8.0, 8.0, 25)
    return np.asarray(found)
