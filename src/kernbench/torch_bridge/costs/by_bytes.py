"""Operations that cost what their bytes cost."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.commands import Engine, Space
from kernbench.op_log import Limit, Template
from kernbench.torch_bridge.costs.timing import OperationTiming

if TYPE_CHECKING:
    from kernbench.hardware import SipSpec
    from kernbench.op_log import Column


def timing_by_bytes(
    name: str, sip: SipSpec, read_bytes: int, written_bytes: int
) -> OperationTiming:
    """Return the schedules of a kernel that streams its operands through HBM once."""
    return OperationTiming(partial(_template, name, sip, read_bytes, written_bytes))


def _template(
    name: str, sip: SipSpec, read_bytes: int, written_bytes: int, queued: bool
) -> Template:
    hbm_bytes = read_bytes + written_bytes
    busy_ps = sip.hbm_stream_ps(hbm_bytes)
    start_ps = sip.queued_front_end_ps if queued else sip.front_end_ps
    end_ps = start_ps + sip.hbm_latency_ps + busy_ps
    rows = partial(_rows, start_ps, end_ps, busy_ps, read_bytes, written_bytes)
    return Template(
        name=name,
        kind="kernel",
        algorithm="",
        duration_ps=end_ps,
        flops=0,
        hbm_bytes=hbm_bytes,
        engine_busy_ps={Engine.DMA_IN: busy_ps, Engine.DMA_OUT: busy_ps},
        message_bytes=0,
        bound_ps=busy_ps,
        limits_ps={
            Limit.HBM: busy_ps,
            Limit.LAUNCH: start_ps,
            Limit.LATENCY: sip.hbm_latency_ps,
        },
        make_rows=rows,
    )


def _rows(
    start_ps: int, end_ps: int, busy_ps: int, read_bytes: int, written_bytes: int
) -> dict[str, Column]:
    rows: dict[str, Any] = {
        "engine": np.array([Engine.DMA_IN.value, Engine.DMA_OUT.value]),
        "kind": np.array(["dma_read", "dma_write"]),
        "start_ps": np.array([start_ps, start_ps]),
        "end_ps": np.array([end_ps, end_ps]),
        "busy_ps": np.array([busy_ps, busy_ps]),
        "bytes": np.array([read_bytes, written_bytes]),
        "src_space": np.array([Space.HBM.value, Space.TCM.value]),
        "dst_space": np.array([Space.TCM.value, Space.HBM.value]),
    }
    return rows
