"""What fills and copies cost: bytes over HBM or the host link of their SIP, nothing of their own.

A fill occupies the device's front end and all of its HBM; a copy inside a SIP reads and writes it.
A copy from or to the host takes the host link's latency and its bandwidth.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from kernbench.commands import Engine, Space
from kernbench.op_log import Limit, Template, WorkCounts, pace_of

if TYPE_CHECKING:
    from kernbench.hardware import Machine, SipSpec
    from kernbench.op_log import Column

TransferKind = Literal["fill", "copy", "copy_from_host", "copy_to_host"]


class TransferTemplates:
    """The templates of a run's fills and copies; equal ones are the same object."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[tuple[TransferKind, int, int], Template] = {}

    def build(self, kind: TransferKind, sip_id: int, size_bytes: int) -> Template:
        """Return the template of one transfer on a SIP."""
        spec = self._machine.sip_at(sip_id)
        # SIPs without a description of their own share one object.
        key = (kind, id(spec), size_bytes)
        template = self._known.get(key)
        if template is None:
            template = self._known[key] = _build(kind, spec, size_bytes)
        return template


def _build(kind: TransferKind, spec: SipSpec, size_bytes: int) -> Template:
    if kind == "fill":
        ends = (Space.NONE, Space.HBM)
        engine, hbm_bytes = Engine.DMA_OUT, size_bytes
        busy_ps = spec.hbm_stream_ps(hbm_bytes)
        duration_ps = spec.front_end_ps + spec.hbm_latency_ps + busy_ps
    elif kind == "copy":
        ends = (Space.HBM, Space.HBM)
        engine, hbm_bytes = Engine.DMA_OUT, 2 * size_bytes
        busy_ps = spec.hbm_stream_ps(hbm_bytes)
        duration_ps = spec.front_end_ps + 2 * spec.hbm_latency_ps + busy_ps
    else:
        ends = (Space.HOST, Space.HBM) if kind == "copy_from_host" else (Space.HBM, Space.HOST)
        engine, hbm_bytes = Engine.HOST, size_bytes
        busy_ps = duration_ps = spec.host_copy_ps(size_bytes)
    host_bytes = size_bytes if engine is Engine.HOST else 0
    work = WorkCounts(hbm_bytes=hbm_bytes, host_bytes=host_bytes)
    return Template(
        name=kind,
        kind="fill" if kind == "fill" else "copy",
        algorithm="",
        duration_ps=duration_ps,
        flops=0,
        hbm_bytes=hbm_bytes,
        engine_busy_ps={engine: busy_ps},
        limits_ps={Limit.HBM: spec.hbm_stream_ps(hbm_bytes)},
        message_bytes=0,
        # The engines that copies take run at any clock; the PEs do nothing.
        energy_pj=pace_of(spec.power, work, 0, 0).energy_pj,
        make_rows=partial(
            _rows, kind, engine, duration_ps - busy_ps, duration_ps, size_bytes, ends
        ),
    )


def _rows(
    kind: TransferKind,
    engine: Engine,
    start_ps: int,
    end_ps: int,
    size_bytes: int,
    ends: tuple[Space, Space],
) -> dict[str, Column]:
    return {
        "engine": np.array([engine.value]),
        "kind": np.array(["dma_write" if kind == "fill" else "copy"]),
        "start_ps": np.array([start_ps], dtype=np.int64),
        "end_ps": np.array([end_ps], dtype=np.int64),
        "busy_ps": np.array([end_ps - start_ps], dtype=np.int64),
        "bytes": np.array([size_bytes], dtype=np.int64),
        "src_space": np.array([ends[0].value]),
        "dst_space": np.array([ends[1].value]),
    }
