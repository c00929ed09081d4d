"""A grid of GEMM tiles as one matrix product: found where it should be, right everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    DmaWrite,
    Gemm,
    KernelTrace,
    Loop,
    Predicate,
    ProgramGroup,
    Separable,
    make_range,
    programs,
    uniform,
    walk,
)
from kernbench.dtypes import as_dtype
from kernbench.replay.plans.composite import composite_groups
from kernbench.replay.plans.plan import Plan
from tests.replay.handmade import Build, along, buffers, contents, make_trace, matmul
from tests.tiers import examples

RNG = np.random.default_rng(2)


def _is_one_gemm(trace: KernelTrace) -> bool:
    groups = [part for group in trace.groups for part in composite_groups(group)]
    commands = [command for group in groups for command in walk(group.body)]
    products = sum(isinstance(command, Gemm) for command in commands)
    return products == 1 and not any(isinstance(command, Loop) for command in commands)


def _inputs(m: int, n: int, k: int, dtype: str) -> list[Any]:
    numpy = as_dtype(dtype).numpy
    shapes = ((m, k), (k, n), (m, n), (n,), (m, n))
    return [RNG.integers(-3, 4, shape).astype(numpy) for shape in shapes]


def _expected(arrays: list[Any], epilogue: str) -> np.ndarray:
    a, b, _, bias, residual = (array.astype(np.float32) for array in arrays)
    product = a @ b
    if epilogue != "none":
        product = np.maximum(product + bias, 0)
    if epilogue == "residual":
        product = product + residual
    return product.astype(arrays[2].dtype)


def _run(
    trace: KernelTrace, arrays: list[Any], transposes: tuple[bool, bool], composite: bool
) -> Any:
    a, b, c, bias, residual = arrays
    stored = (a.T if transposes[0] else a, b.T if transposes[1] else b)
    args = buffers(*stored, np.full_like(c, 7), bias, residual)
    Plan(trace, composite=composite).run(args)
    return contents(args[2], c)


@pytest.mark.slow
@pytest.mark.adr("0005-D1")
@pytest.mark.adr("0005-D4")
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 70),
    k=st.integers(1, 70),
    tiles=st.tuples(*[st.sampled_from([16, 32])] * 3),
    group_size=st.integers(1, 4),
    transposes=st.tuples(st.booleans(), st.booleans()),
    wrap=st.booleans(),
    epilogue=st.sampled_from(["none", "bias", "residual"]),
    dtype=st.sampled_from(["f16", "bf16", "f32"]),
)
@examples(80)
def test_composite_and_general_path_agree_with_numpy(
    m: int,
    n: int,
    k: int,
    tiles: tuple[int, int, int],
    group_size: int,
    transposes: tuple[bool, bool],
    wrap: bool,
    epilogue: str,
    dtype: str,
) -> None:
    arrays = _inputs(m, n, k, dtype)
    trace = matmul(
        m,
        n,
        k,
        tiles,
        dtype=dtype,
        transpose_a=transposes[0],
        transpose_b=transposes[1],
        group_size=group_size,
        wrap=wrap,
        epilogue=epilogue,
    )
    assert _is_one_gemm(trace)
    # Small integers: every order of summation gives the same bits.
    expected = _expected(arrays, epilogue)
    np.testing.assert_array_equal(_run(trace, arrays, transposes, True), expected)
    np.testing.assert_array_equal(_run(trace, arrays, transposes, False), expected)


@pytest.mark.adr("0005-D2")
def test_the_product_is_the_bits_of_one_float32_matmul() -> None:
    a = RNG.standard_normal((96, 200)).astype(np.float16)
    b = RNG.standard_normal((200, 80)).astype(np.float16)
    arrays = [a, b, np.zeros((96, 80), np.float16), np.zeros(80, np.float16), np.zeros((96, 80))]
    trace = matmul(96, 80, 200, (32, 32, 32), group_size=2)
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(_run(trace, arrays, (False, False), True), expected)


def _batched(batch: int, m: int, n: int, k: int, tile: int) -> KernelTrace:
    """One program per batch and tile; the whole of k at once, without a loop."""
    build = Build()
    tiles_m, tiles_n = m // tile, n // tile
    pid = np.arange(batch * tiles_m * tiles_n)
    z, rest = pid // (tiles_m * tiles_n), pid % (tiles_m * tiles_n)
    rows = (programs(rest // tiles_n * tile) + make_range(0, tile)).with_shape((tile,))
    cols = (programs(rest % tiles_n * tile) + make_range(0, tile)).with_shape((tile,))
    inner = make_range(0, k)

    def at(left: Separable, right: Separable, width: int, size: int) -> Separable:
        shape = (left.shape[0], right.shape[0])
        matrix = along(left, 0, shape) * uniform(width) + along(right, 1, shape)
        return matrix + programs(z * size)

    a = build.load(0, at(rows, inner, k, m * k))
    b = build.load(1, at(inner, cols, n, k * n))
    build.store(2, at(rows, cols, n, m * n), build.dot(a, b, None))
    return build.trace((len(pid), 1, 1))


def test_a_batch_is_one_product_per_matrix() -> None:
    trace = _batched(3, 32, 64, 24, 16)
    (group,) = trace.groups
    assert [len(part.program_ids) for part in composite_groups(group)] == [1, 1, 1]
    a = RNG.integers(-3, 4, (3, 32, 24)).astype(np.float32)
    b = RNG.integers(-3, 4, (3, 24, 64)).astype(np.float32)
    for composite in (True, False):
        args = buffers(a, b, np.zeros((3, 32, 64), np.float32))
        Plan(trace, composite=composite).run(args)
        np.testing.assert_array_equal(contents(args[2], np.zeros((3, 32, 64), np.float32)), a @ b)


@pytest.mark.adr("0005-D3")
def test_programs_that_are_no_outer_product_take_the_general_path() -> None:
    trace = matmul(64, 64, 32, (16, 16, 16))
    (group,) = trace.groups
    keep = np.array([0, 1, 2, 5, 6, 7, 9, 10])
    commands: list[Any] = []
    body: tuple[Any, ...] = group.body
    for command in body:
        if isinstance(command, DmaWrite):
            dest = replace(command.dest, offset=command.dest.offset.take_programs(keep))
            assert isinstance(command.mask, Predicate)
            mask = command.mask.take_programs(keep)
            commands.append(replace(command, dest=dest, mask=mask))
        elif isinstance(command, Loop):
            parts: tuple[Any, ...] = command.body
            inside = [
                replace(c, source=replace(c.source, offset=c.source.offset.take_programs(keep)))
                if hasattr(c, "source")
                else c
                for c in parts
            ]
            commands.append(replace(command, body=tuple(inside)))
        else:
            commands.append(command)
    partial = make_trace([ProgramGroup(keep, tuple(commands))], (16, 1, 1), trace.num_slots)
    assert composite_groups(partial.groups[0]) == [partial.groups[0]]
    arrays = _inputs(64, 64, 32, "f16")
    result = _run(partial, arrays, (False, False), True)
    expected = np.full((64, 64), 7, np.float16)
    product = _expected(arrays, "none")
    for pid in keep:
        tile = np.s_[pid // 4 * 16 : pid // 4 * 16 + 16, pid % 4 * 16 : pid % 4 * 16 + 16]
        expected[tile] = product[tile]
    np.testing.assert_array_equal(result, expected)


def test_a_reduction_in_the_epilogue_takes_the_general_path() -> None:
    build = Build()
    rows = (programs(np.arange(4) * 16) + make_range(0, 16)).with_shape((16,))
    inner, cols = make_range(0, 8), make_range(0, 32)
    a = build.load(0, along(rows, 0, (16, 8)) * uniform(8) + along(inner, 1, (16, 8)))
    b = build.load(1, along(inner, 0, (8, 32)) * uniform(32) + along(cols, 1, (8, 32)))
    build.store(2, rows, build.reduce("arith.maxnumf", build.dot(a, b, None), 1))
    trace = build.trace((4, 1, 1))
    a0 = RNG.integers(-3, 4, (64, 8)).astype(np.float32)
    b0 = RNG.integers(-3, 4, (8, 32)).astype(np.float32)
    args = buffers(a0, b0, np.zeros(64, np.float32))
    Plan(trace).run(args)
    np.testing.assert_array_equal(
        contents(args[2], np.zeros(64, np.float32)), (a0 @ b0).max(axis=1)
    )
