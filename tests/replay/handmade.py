"""Traces of small kernels, written by hand as the evaluator would write them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernbench.commands import (
    UNKNOWN_LINE,
    Access,
    Carried,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    KernelTrace,
    Loop,
    Mask,
    Math,
    MathClass,
    Operand,
    Predicate,
    ProgramGroup,
    Reduce,
    Separable,
    Splat,
    Tile,
    combine,
    compare,
    loop_index,
    make_range,
    programs,
    uniform,
    walk,
)
from kernbench.dtypes import DType, as_dtype, float32
from kernbench.memory import Buffer, DeviceMemory
from kernbench.replay import PointerArg

ALWAYS = Predicate(())


class Build:
    """Numbers tiles and collects commands, so that a test reads like the kernel."""

    def __init__(self) -> None:
        self._slots = itertools.count()
        self.body: list[Command] = []

    def tile(self, shape: tuple[int, ...], dtype: Any = float32) -> Tile:
        return Tile(next(self._slots), shape, as_dtype(dtype))

    def load(
        self,
        param: int,
        elements: Separable,
        dtype: Any = float32,
        mask: Mask = ALWAYS,
        other: Operand | None = None,
        gather: Tile | None = None,
    ) -> Tile:
        kind = as_dtype(dtype)
        dst = self.tile(elements.shape, kind)
        source = Access(param, elements * uniform(kind.itemsize), kind, gather)
        self.body.append(DmaRead(dst, source, mask, other, UNKNOWN_LINE))
        return dst

    def store(
        self,
        param: int,
        elements: Separable,
        value: Operand,
        dtype: Any = float32,
        mask: Mask = ALWAYS,
        gather: Tile | None = None,
    ) -> None:
        kind = as_dtype(dtype)
        dest = Access(param, elements * uniform(kind.itemsize), kind, gather)
        self.body.append(DmaWrite(dest, value, mask, UNKNOWN_LINE))

    def math(
        self, op: str, *inputs: Operand, dtype: Any = None, shape: Any = None, **attrs: Any
    ) -> Tile:
        first = inputs[0]
        kind = as_dtype(dtype) if dtype is not None else first.dtype  # type: ignore[union-attr]
        shape = shape if shape is not None else np.broadcast_shapes(*(i.shape for i in inputs))
        dst = self.tile(shape, kind)
        self.body.append(Math(dst, op, inputs, MathClass.SIMPLE, UNKNOWN_LINE, attrs))
        return dst

    def reduce(self, combine: str, value: Operand, axis: int) -> Tile:
        shape = tuple(n for i, n in enumerate(value.shape) if i != axis)
        dst = self.tile(shape, value.dtype)  # type: ignore[union-attr]
        self.body.append(Reduce((dst,), combine, (value,), axis, UNKNOWN_LINE))
        return dst

    def dot(self, a: Operand, b: Operand, acc: Operand | None, dtype: Any = float32) -> Tile:
        dst = self.tile((*a.shape[:-1], b.shape[-1]), dtype)
        self.body.append(Gemm(dst, a, b, acc, "ieee", UNKNOWN_LINE))
        return dst

    def trace(self, grid: tuple[int, int, int]) -> KernelTrace:
        count = grid[0] * grid[1] * grid[2]
        return make_trace(
            [ProgramGroup(np.arange(count), tuple(self.body))], grid, next(self._slots)
        )


def make_trace(
    groups: Sequence[ProgramGroup], grid: tuple[int, int, int], num_slots: int
) -> KernelTrace:
    touched = set[int]()
    for group in groups:
        for command in walk(group.body):
            if isinstance(command, DmaRead):
                touched.add(command.source.param)
            elif isinstance(command, DmaWrite):
                touched.add(command.dest.param)
    return KernelTrace(
        "kernel", grid, 4, 1, tuple(groups), num_slots, 0, UNKNOWN_LINE, tuple(sorted(touched))
    )


def along(vector: Separable, axis: int, shape: tuple[int, ...]) -> Separable:
    """Return a vector's numbers along one axis of a tile."""
    return vector.with_shape(shape, {0: axis})


def less(a: Separable, b: Separable | int) -> Predicate:
    other = b if isinstance(b, Separable) else uniform(b)
    return compare(np.less, a, other)


def buffers(*arrays: np.ndarray[Any, Any]) -> list[PointerArg]:
    """Return one pointer per array, to a buffer that holds a copy of it."""
    memory = DeviceMemory(0, 1 << 34, has_data=True)
    pointers = []
    for index, array in enumerate(arrays):
        buffer = memory.allocate(array.nbytes, f"arg{index}")
        buffer.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        pointers.append(PointerArg(buffer))
    return pointers


def contents(pointer: PointerArg, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    buffer: Buffer = pointer.buffer
    return buffer.bytes.view(like.dtype).reshape(like.shape)


def vector_add(length: int, block: int, dtype: Any = float32) -> KernelTrace:
    build = Build()
    count = -(-length // block)
    offsets = (programs(np.arange(count) * block) + make_range(0, block)).with_shape((block,))
    mask = less(offsets, length)
    x = build.load(0, offsets, dtype, mask)
    y = build.load(1, offsets, dtype, mask)
    build.store(2, offsets, build.math("arith.addf", x, y), dtype, mask)
    return build.trace((count, 1, 1))


def softmax_rows(rows: int, columns: int, block: int) -> KernelTrace:
    build = Build()
    axis = make_range(0, block)
    offsets = (programs(np.arange(rows) * columns) + axis).with_shape((block,))
    mask = less(axis, columns)
    x = build.load(0, offsets, float32, mask, Splat(float("-inf"), (block,), float32))
    top = build.math("tt.splat", build.reduce("arith.maxnumf", x, 0), shape=(block,))
    e = build.math("math.exp", build.math("arith.subf", x, top))
    total = build.math("tt.splat", build.reduce("arith.addf", e, 0), shape=(block,))
    build.store(1, offsets, build.math("arith.divf", e, total), float32, mask)
    return build.trace((rows, 1, 1))


def matmul(
    m: int,
    n: int,
    k: int,
    tiles: tuple[int, int, int],
    *,
    dtype: DType | str = "f16",
    transpose_a: bool = False,
    transpose_b: bool = False,
    group_size: int = 1,
    wrap: bool = True,
    epilogue: str = "none",
) -> KernelTrace:
    """Return the tutorial's GEMM ``c = a @ b``; parameters a, b, c, bias, residual."""
    bm, bn, bk = tiles
    kind = as_dtype(dtype)
    build = Build()
    num_m, num_n = -(-m // bm), -(-n // bn)
    pid = np.arange(num_m * num_n)
    per_group = group_size * num_n
    first = pid // per_group * group_size
    height = np.minimum(num_m - first, group_size)
    pid_m = first + (pid % per_group) % height
    pid_n = (pid % per_group) // height
    rows = (programs(pid_m * bm) + make_range(0, bm)).with_shape((bm,))
    cols = (programs(pid_n * bn) + make_range(0, bn)).with_shape((bn,))
    trips = -(-k // bk)
    inner = (loop_index(0, 0, bk, trips) + make_range(0, bk)).with_shape((bk,))
    k_mask = less(inner, k)
    in_rows = combine(np.mod, rows, Separable((), m)) if wrap else rows
    in_cols = combine(np.mod, cols, Separable((), n)) if wrap else cols
    a_strides = (1, m) if transpose_a else (k, 1)
    b_strides = (1, k) if transpose_b else (n, 1)
    a_shape, b_shape, c_shape = (bm, bk), (bk, bn), (bm, bn)
    a_at = along(in_rows, 0, a_shape) * uniform(a_strides[0]) + along(inner, 1, a_shape) * uniform(
        a_strides[1]
    )
    b_at = along(inner, 0, b_shape) * uniform(b_strides[0]) + along(in_cols, 1, b_shape) * uniform(
        b_strides[1]
    )
    a_mask = k_mask.with_shape(a_shape, {0: 1})
    b_mask = k_mask.with_shape(b_shape, {0: 0})
    if not wrap:
        a_mask = a_mask & less(rows, m).with_shape(a_shape, {0: 0})
        b_mask = b_mask & less(cols, n).with_shape(b_shape, {0: 1})
    acc = build.tile(c_shape)
    outer, build.body = build.body, []
    a = build.load(0, a_at, kind, a_mask, Splat(0.0, a_shape, kind))
    b = build.load(1, b_at, kind, b_mask, Splat(0.0, b_shape, kind))
    new = build.dot(a, b, acc)
    result = build.tile(c_shape)
    carried = Carried(Splat(0.0, c_shape, float32), acc, new, result)
    outer.append(Loop(0, trips, tuple(build.body), (carried,), 3, UNKNOWN_LINE))
    build.body = outer
    value = result
    c_at = along(rows, 0, c_shape) * uniform(n) + along(cols, 1, c_shape)
    c_mask = less(rows, m).with_shape(c_shape, {0: 0}) & less(cols, n).with_shape(c_shape, {0: 1})
    if epilogue != "none":
        bias = build.load(3, cols, kind, less(cols, n))
        bias = build.math("arith.extf", bias, dtype=float32) if kind is not float32 else bias
        row = build.math("tt.expand_dims", bias, shape=(1, bn), axis=0)
        value = build.math("arith.addf", value, build.math("tt.broadcast", row, shape=c_shape))
        zero = Splat(0.0, c_shape, float32)
        value = build.math("arith.maxnumf", value, zero)
    if epilogue == "residual":
        extra = build.load(4, c_at, kind, c_mask)
        extra = build.math("arith.extf", extra, dtype=float32) if kind is not float32 else extra
        value = build.math("arith.addf", value, extra)
    out = build.math("arith.truncf", value, dtype=kind) if kind is not float32 else value
    build.store(2, c_at, out, kind, c_mask)
    return build.trace((len(pid), 1, 1))
