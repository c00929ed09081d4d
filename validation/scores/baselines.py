"""The roofline: the longer of compute and memory time at the vendor's peaks, on the same rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernbench.accuracy.rows import Category, Machines, Row
from kernbench.accuracy.score import Errors, Scored, errors_of
from kernbench.errors import KernbenchError
from kernbench.hardware import Machine

_GEMM_RATES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8": "float8_e4m3fn"}


def roofline(scored: Sequence[Scored], machines: Machines) -> Errors | None:
    """Return the roofline's errors on the rows that the model predicts; None without an answer."""
    rows = [item.row for item in scored if item.answer.time_us is not None]
    known = [(max(ideal), row.time_us) for row in rows if (ideal := ideal_us(row, machines))]
    return errors_of(*np.array(known).T) if known else None


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
