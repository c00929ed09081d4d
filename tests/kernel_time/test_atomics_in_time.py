"""What atomics cost: a read and a write, and turns where programs meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.commands import (
    PROGRAM,
    UNKNOWN_LINE,
    Access,
    Atomic,
    Command,
    DmaWrite,
    Math,
    MathClass,
    Predicate,
    Separable,
    Splat,
    Tile,
    axis_dim,
)
from kernbench.dtypes import float32, int32
from kernbench.kernel_time import schedule_kernel
from kernbench.op_log import Template
from tests.kernel_time.kernel_traces import machine_with, trace_of

BLOCK = 256


def tile_of(stride_bytes: int, programs: int) -> Access:
    terms: dict[tuple[int, ...], Any] = {(axis_dim(0),): np.arange(BLOCK) * 4}
    if stride_bytes:
        terms[(PROGRAM,)] = np.arange(programs) * stride_bytes
    return Access(0, Separable((BLOCK,), 0, terms), float32)


def scheduled(*body: Command, programs: int = 8) -> Template:
    return schedule_kernel(trace_of((list(range(programs)), body)), machine_with(), 0)


def add(stride_bytes: int, programs: int = 8) -> Atomic:
    one = Splat(1.0, (BLOCK,), float32)
    access = tile_of(stride_bytes, programs)
    return Atomic(None, "fadd", access, one, None, Predicate((BLOCK,)), UNKNOWN_LINE)


@pytest.mark.adr("0031-D10")
def test_an_atomic_moves_every_burst_twice() -> None:
    store = DmaWrite(
        tile_of(4 * BLOCK, 8), Splat(1.0, (BLOCK,), float32), Predicate((BLOCK,)), UNKNOWN_LINE
    )
    assert scheduled(add(4 * BLOCK)).hbm_bytes == 2 * scheduled(store).hbm_bytes


@pytest.mark.adr("0031-D10")
def test_programs_that_meet_at_an_address_take_turns() -> None:
    apart, met = scheduled(add(4 * BLOCK)), scheduled(add(0))
    sip = machine_with().sip_at(0)
    turns = 7 * 2 * 4 * BLOCK * 1000 / sip.cube_hbm_gbps
    assert met.duration_ps - apart.duration_ps == pytest.approx(float(turns), abs=2)


@pytest.mark.adr("0031-D10")
def test_who_needs_the_old_value_waits_for_it() -> None:
    old, out = Tile(0, (), int32), Tile(1, (), int32)
    access = Access(0, Separable(()), int32)
    one = Splat(1, (), int32)
    atomic = Atomic(old, "add", access, one, None, Predicate(()), UNKNOWN_LINE)
    use = Math(out, "arith.addi", (old, one), MathClass.SIMPLE, UNKNOWN_LINE)
    rows = scheduled(atomic, use, programs=1).make_rows()
    assert list(rows["kind"]) == ["atomic", "math"]
    assert rows["start_ps"][1] == rows["end_ps"][0]
    assert rows["src_space"][0] == rows["dst_space"][0] == "hbm"
    latency_ps = int(machine_with().sip_at(0).cube.hbm_latency_ns * 1000)
    assert rows["end_ps"][0] - rows["start_ps"][0] >= latency_ps
