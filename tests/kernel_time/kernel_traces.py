"""Traces built by hand, for tests of timing: what the evaluator would say of simple kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import yaml

from kernbench.commands import (
    PROGRAM,
    UNKNOWN_LINE,
    Access,
    Carried,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    KernelTrace,
    Loop,
    Math,
    MathClass,
    Predicate,
    ProgramGroup,
    Separable,
    Splat,
    Tile,
    axis_dim,
    loop_dim,
)
from kernbench.dtypes import DType, float16, float32
from kernbench.hardware import Machine, load_machine, parse_machine

ROW, COLUMN = axis_dim(0), axis_dim(1)


def machine_with(**changes: Any) -> Machine:
    """Return one SIP of ahbm with keys of ``sip`` changed, e.g. ``cube__hbm_latency_ns=0``."""
    data = load_machine("ahbm", 1).spec.model_dump(mode="json")
    for path, value in changes.items():
        *groups, key = path.split("__")
        group = data["sip"]
        for item in groups:
            group = group[item]
        group[key] = value
    return parse_machine(yaml.safe_dump(data), "test.yaml", 1)


def trace_of(
    *groups: tuple[list[int], tuple[Command, ...]], num_slots: int = 64, num_stages: int = 1
) -> KernelTrace:
    """Return a launch of groups, each a list of program ids and what they do."""
    count = sum(len(ids) for ids, _ in groups)
    return KernelTrace(
        name="kernel",
        grid=(count, 1, 1),
        num_warps=4,
        num_stages=num_stages,
        groups=tuple(ProgramGroup(np.array(ids, dtype=np.int64), body) for ids, body in groups),
        num_slots=num_slots,
        tcm_bytes=0,
        line=UNKNOWN_LINE,
        pointer_params=(0, 1, 2),
    )


def access(param: int, shape: tuple[int, ...], dtype: DType, **terms: Any) -> Access:
    """Return addresses; terms are arrays of bytes, ``P``, ``K``, ``R``, ``C`` their dims."""
    dims = {"P": PROGRAM, "K": loop_dim(0), "R": ROW, "C": COLUMN}
    arrays = {
        tuple(dims[d] for d in name): np.asarray(array, dtype=np.int64)
        for name, array in terms.items()
    }
    return Access(param, Separable(shape, 0, arrays), dtype)


def only_gemm(m: int, n: int, k: int, dtype: DType = float16) -> tuple[Command, ...]:
    """Return one dot of constants: engine work that needs no memory."""
    a, b = Splat(0.0, (m, k), dtype), Splat(0.0, (k, n), dtype)
    return (Gemm(Tile(0, (m, n), float32), a, b, None, "ieee", UNKNOWN_LINE),)


def gemm_trace(
    m: int,
    n: int,
    k: int,
    block: tuple[int, int, int] = (64, 64, 64),
    num_stages: int = 3,
    column_major: bool = False,
) -> KernelTrace:
    """Return fp16 ``C[m, n] = A[m, k] @ B[k, n]``, a program per tile of C, edges masked."""
    block_m, block_n, block_k = block
    tiles_m, tiles_n, steps = -(-m // block_m), -(-n // block_n), -(-k // block_k)
    program = np.arange(tiles_m * tiles_n)
    first = (program % tiles_m, program // tiles_m) if column_major else None
    row, column = first or np.divmod(program, tiles_n)
    rows = row[:, None] * block_m + np.arange(block_m) < m
    columns = column[:, None] * block_n + np.arange(block_n) < n
    depth = np.arange(steps)[:, None] * block_k + np.arange(block_k) < k
    loop = loop_dim(0)

    def mask(shape: tuple[int, ...], terms: dict[tuple[int, ...], Any]) -> Predicate:
        return Predicate(shape, {d: held for d, held in terms.items() if not held.all()})

    a = Tile(0, (block_m, block_k), float16)
    b = Tile(1, (block_k, block_n), float16)
    zero = Splat(0.0, (block_m, block_n), float32)
    carried_in, summed, out, half = (
        Tile(2, (block_m, block_n), float32),
        Tile(3, (block_m, block_n), float32),
        Tile(4, (block_m, block_n), float32),
        Tile(5, (block_m, block_n), float16),
    )
    load_a = DmaRead(
        a,
        access(
            0,
            a.shape,
            float16,
            P=row * block_m * k * 2,
            K=np.arange(steps) * block_k * 2,
            R=np.arange(block_m) * k * 2,
            C=np.arange(block_k) * 2,
        ),
        mask(a.shape, {(PROGRAM, ROW): rows, (loop, COLUMN): depth}),
        None,
        UNKNOWN_LINE,
    )
    load_b = DmaRead(
        b,
        access(
            1,
            b.shape,
            float16,
            P=column * block_n * 2,
            K=np.arange(steps) * block_k * n * 2,
            R=np.arange(block_k) * n * 2,
            C=np.arange(block_n) * 2,
        ),
        mask(b.shape, {(loop, ROW): depth, (PROGRAM, COLUMN): columns}),
        None,
        UNKNOWN_LINE,
    )
    dot = Gemm(summed, a, b, carried_in, "ieee", UNKNOWN_LINE)
    carried = Carried(zero, carried_in, summed, out)
    store = DmaWrite(
        access(
            2,
            half.shape,
            float16,
            P=row * block_m * n * 2 + column * block_n * 2,
            R=np.arange(block_m) * n * 2,
            C=np.arange(block_n) * 2,
        ),
        half,
        mask(half.shape, {(PROGRAM, ROW): rows, (PROGRAM, COLUMN): columns}),
        UNKNOWN_LINE,
    )
    body: tuple[Command, ...] = (
        Loop(0, steps, (load_a, load_b, dot), (carried,), num_stages, UNKNOWN_LINE),
        Math(half, "arith.truncf", (out,), MathClass.CONVERT, UNKNOWN_LINE),
        store,
    )
    return trace_of((program.tolist(), body), num_slots=6, num_stages=num_stages)
