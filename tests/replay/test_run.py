"""Whole kernels on data, against numpy."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    UNKNOWN_LINE,
    Carried,
    Command,
    IndexTile,
    Loop,
    MaskTile,
    Param,
    Predicate,
    Separable,
    Splat,
    combine,
    loop_index,
    make_range,
    programs,
    uniform,
)
from kernbench.dtypes import as_dtype, float32, int32, int64
from kernbench.errors import OutOfBoundsError, UnsupportedOpError, UsageError
from kernbench.replay import PointerArg, run_kernel
from tests.replay.handmade import Build, along, buffers, contents, less, softmax_rows, vector_add
from tests.tiers import examples

RNG = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@given(length=st.integers(1, 5000), block=st.sampled_from([16, 128, 1024]))
@examples(30)
def test_vector_add_is_exact_for_every_tail(length: int, block: int) -> None:
    x, y = _normal(length), _normal(length)
    args = buffers(x, y, np.full(length, -1, np.float32))
    run_kernel(vector_add(length, block), args)
    np.testing.assert_array_equal(contents(args[2], x), x + y)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_vector_add_in_every_float_type(dtype: str) -> None:
    numpy = as_dtype(dtype).numpy
    x, y = _normal(300).astype(numpy), _normal(300).astype(numpy)
    args = buffers(x, y, np.zeros(300, numpy))
    run_kernel(vector_add(300, 64, dtype), args)
    expected = (x.astype(np.float64) + y.astype(np.float64)).astype(np.float32).astype(numpy)
    if dtype == "f64":
        expected = x + y
    np.testing.assert_array_equal(contents(args[2], x), expected)


@pytest.mark.parametrize(
    ("rows", "columns", "block"), [(1, 7, 8), (300, 99, 128), (64, 1024, 1024)]
)
def test_softmax_of_rows(rows: int, columns: int, block: int) -> None:
    x = _normal(rows, columns)
    args = buffers(x, np.zeros_like(x))
    run_kernel(softmax_rows(rows, columns, block), args)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(contents(args[1], x), e / e.sum(axis=1, keepdims=True), rtol=2e-6)


@given(st.integers(0, 70), st.integers(0, 40), st.integers(1, 3), st.booleans())
@examples(40)
def test_masked_stores_never_touch_masked_elements(
    limit: int, skip: int, stride: int, narrow_grid: bool
) -> None:
    build = Build()
    count = 5
    at = programs(np.arange(count) * 16) + make_range(0, 16)
    mask = less(at, limit) & less(uniform(skip) - at, 1)
    build.store(0, at * uniform(stride), Splat(7.0, (16,), float32), float32, mask)
    before = np.full(count * 16 * stride, -3, np.float32)
    args = buffers(before)
    run_kernel(build.trace((count, 1, 1)), args)
    lane = np.arange(count * 16)
    expected = before.copy()
    expected[lane[(lane < limit) & (lane >= skip)] * stride] = 7
    np.testing.assert_array_equal(contents(args[0], before), expected)


def test_masked_loads_take_other_and_may_point_outside() -> None:
    build = Build()
    at = programs(np.arange(3) * 8) + make_range(0, 8)
    x = build.load(0, at, float32, less(at, 10), Splat(-1.0, (8,), float32))
    build.store(1, at, x)
    x0 = np.arange(10, dtype=np.float32)
    args = buffers(x0, np.zeros(24, np.float32))
    run_kernel(build.trace((3, 1, 1)), args)
    expected = np.concatenate([x0, np.full(14, -1, np.float32)])
    np.testing.assert_array_equal(contents(args[1], expected), expected)


def test_a_mask_and_other_that_are_data() -> None:
    build = Build()
    at = programs(np.arange(4) * 8) + make_range(0, 8)
    x = build.load(0, at)
    positive = build.math("arith.cmpf", x, Splat(0.0, (8,), float32), dtype="i1", predicate="ogt")
    y = build.load(1, at, float32, positive, x)
    build.store(2, at, y, float32, positive)
    a, b, c = _normal(32), _normal(32), np.full(32, 9, np.float32)
    args = buffers(a, b, c)
    run_kernel(build.trace((4, 1, 1)), args)
    np.testing.assert_array_equal(contents(args[2], c), np.where(a > 0, b, 9))


@pytest.mark.adr("0005-D3")
def test_overlapping_stores_of_programs_run_in_program_order() -> None:
    build = Build()
    at = programs(np.arange(40) * 3) + make_range(0, 8)
    value = IndexTile((programs(np.arange(40)) + uniform(0)).with_shape((8,)), int32)
    build.store(0, at, value, int32)
    out = np.zeros(39 * 3 + 8, np.int32)
    args = buffers(out)
    run_kernel(build.trace((40, 1, 1)), args)
    for program in range(40):
        out[program * 3 : program * 3 + 8] = program
    np.testing.assert_array_equal(contents(args[0], out), out)


def test_all_programs_on_one_place_leave_the_last_value() -> None:
    build = Build()
    build.store(0, Separable(()), IndexTile(programs(np.arange(9)), int32), int32)
    args = buffers(np.zeros(1, np.int32))
    run_kernel(build.trace((9, 1, 1)), args)
    assert contents(args[0], np.zeros(1, np.int32))[0] == 8


def test_a_load_after_a_store_of_the_same_program_sees_it() -> None:
    build = Build()
    at = programs(np.arange(4) * 8) + make_range(0, 8)
    x = build.load(0, at)
    build.store(0, at, build.math("arith.addf", x, x))
    again = build.load(0, at)
    build.store(1, at, again)
    x0 = _normal(32)
    args = buffers(x0, np.zeros_like(x0))
    run_kernel(build.trace((4, 1, 1)), args)
    np.testing.assert_array_equal(contents(args[1], x0), x0 + x0)


@pytest.mark.adr("0005-D6")
def test_a_loaded_tile_keeps_its_value_when_memory_changes_under_it() -> None:
    build = Build()
    at = make_range(0, 8)
    x = build.load(0, at)
    row = build.math("tt.reshape", x, shape=(2, 4))
    build.store(1, at, Splat(0.0, (8,), float32))
    wide = along(make_range(0, 2), 0, (2, 4)) * uniform(4) + along(make_range(0, 4), 1, (2, 4))
    build.store(2, wide, row)
    x0 = _normal(8)
    args = buffers(x0, np.zeros_like(x0))
    # Parameters 0 and 1 are the same tensor.
    run_kernel(build.trace((1, 1, 1)), [args[0], args[0], args[1]])
    np.testing.assert_array_equal(contents(args[1], x0), x0)
    np.testing.assert_array_equal(contents(args[0], x0), np.zeros(8))


def test_a_loop_carries_values_and_may_swap_them() -> None:
    build = Build()
    lane = make_range(0, 4)
    a, b = build.tile((4,)), build.tile((4,))
    a_out, b_out = build.tile((4,)), build.tile((4,))
    outer: list[Command] = build.body
    build.body = []
    step = build.load(0, lane + loop_index(0, 0, 4, 5))
    grown = build.math("arith.addf", b, step)
    carried = (
        Carried(Splat(1.0, (4,), float32), a, grown, a_out),
        Carried(Splat(2.0, (4,), float32), b, a, b_out),
    )
    outer.append(Loop(0, 5, tuple(build.body), carried, 1, UNKNOWN_LINE))
    build.body = outer
    build.store(1, lane, a_out)
    build.store(2, lane, b_out)
    steps = _normal(5, 4)
    args = buffers(steps, np.zeros(4, np.float32), np.zeros(4, np.float32))
    run_kernel(build.trace((1, 1, 1)), args)
    x, y = np.full(4, 1, np.float32), np.full(4, 2, np.float32)
    for row in steps:
        x, y = y + row, x
    np.testing.assert_array_equal(contents(args[1], x), x)
    np.testing.assert_array_equal(contents(args[2], y), y)


def test_a_loop_that_runs_no_time_hands_its_init_on() -> None:
    build = Build()
    arg, out = build.tile((4,)), build.tile((4,))
    carried = Carried(Splat(3.0, (4,), float32), arg, arg, out)
    build.body.append(Loop(0, 0, (), (carried,), 1, UNKNOWN_LINE))
    build.store(0, make_range(0, 4), out)
    args = buffers(np.zeros(4, np.float32))
    run_kernel(build.trace((1, 1, 1)), args)
    assert (contents(args[0], np.zeros(4, np.float32)) == 3).all()


@given(st.integers(1, 30), st.integers(1, 20))
@examples(25)
def test_row_sums_over_a_loop_with_a_ragged_tail(rows: int, columns: int) -> None:
    build = Build()
    block = 4
    trips = -(-columns // block)
    column = loop_index(0, 0, block, trips) + make_range(0, block)
    at = (programs(np.arange(rows) * columns) + column).with_shape((block,))
    acc, out = build.tile((block,)), build.tile((block,))
    outer: list[Command] = build.body
    build.body = []
    x = build.load(0, at, float32, less(column, columns))
    new = build.math("arith.addf", acc, x)
    carried = Carried(Splat(0.0, (block,), float32), acc, new, out)
    outer.append(Loop(0, trips, tuple(build.body), (carried,), 1, UNKNOWN_LINE))
    build.body = outer
    build.store(1, programs(np.arange(rows)), build.reduce("arith.addf", out, 0))
    x0 = _normal(rows, columns)
    args = buffers(x0, np.zeros(rows, np.float32))
    run_kernel(build.trace((rows, 1, 1)), args)
    total = x0.sum(axis=1)
    np.testing.assert_allclose(contents(args[1], total), total, rtol=1e-5, atol=1e-5)


def test_a_float_parameter_and_known_tiles_become_data() -> None:
    build = Build()
    at = programs(np.arange(3) * 8) + make_range(0, 8)
    index = build.math("arith.sitofp", IndexTile(at, int32), dtype=float32)
    scaled = build.math("arith.mulf", index, Param(1, (8,), float32))
    even = MaskTile(less(combine(np.mod, at, Separable((), 2)), 1))
    build.store(0, at, build.math("arith.select", even, scaled, index, dtype=float32))
    out = np.zeros(24, np.float32)
    args = buffers(out)
    trace = build.trace((3, 1, 1))
    for scale in (0.5, 3.0):
        run_kernel(trace, [args[0], scale])
        lane = np.arange(24, dtype=np.float32)
        expected = np.where(lane % 2 == 0, lane * np.float32(scale), lane)
        np.testing.assert_array_equal(contents(args[0], out), expected)


def _gather(rows: int, width: int, count: int) -> Build:
    build = Build()
    row = build.load(1, programs(np.arange(count)), int64)
    offset = build.math("arith.muli", row, Splat(width * 4, (), int64))
    spread = build.math("tt.splat", offset, shape=(width,))
    x = build.load(0, make_range(0, width), float32, gather=spread)
    build.store(2, programs(np.arange(count) * width) + make_range(0, width), x)
    return build


def test_a_gather_reads_rows_that_data_names() -> None:
    table, index = _normal(10, 6), RNG.integers(0, 10, 25)
    args = buffers(table, index, np.zeros((25, 6), np.float32))
    run_kernel(_gather(10, 6, 25).trace((25, 1, 1)), args)
    np.testing.assert_array_equal(contents(args[2], np.zeros((25, 6), np.float32)), table[index])


def test_a_gather_outside_its_tensor_names_tensor_byte_and_program() -> None:
    table, index = _normal(10, 6), np.array([3, 10, 2])
    args = buffers(table, index, np.zeros((3, 6), np.float32))
    message = (
        r"tt.load at unknown line reads 4 bytes at arg0\+240 \(program \(1, 0, 0\)\), but arg0"
    )
    with pytest.raises(OutOfBoundsError, match=message):
        run_kernel(_gather(10, 6, 3).trace((3, 1, 1)), args)
    assert not contents(args[2], np.zeros((3, 6), np.float32)).any()


def test_a_scatter_by_data_writes_in_program_order() -> None:
    build = Build()
    row = build.load(0, programs(np.arange(20)), int64)
    offset = build.math("arith.muli", row, Splat(4, (), int64))
    build.store(1, Separable(()), IndexTile(programs(np.arange(20)), int32), int32, gather=offset)
    index = RNG.integers(0, 6, 20)
    out = np.full(6, -1, np.int32)
    args = buffers(index, out)
    run_kernel(build.trace((20, 1, 1)), args)
    for program, where in enumerate(index):
        out[where] = program
    np.testing.assert_array_equal(contents(args[1], out), out)


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_pointers_that_are_not_aligned_work(shift: int) -> None:
    x = _normal(65)
    args = buffers(x, x, np.zeros_like(x))
    shifted = [PointerArg(arg.buffer, shift) for arg in args]
    run_kernel(vector_add(64, 16), shifted)
    raw = x.view(np.uint8)[shift : shift + 256].copy().view(np.float32)
    view = args[2].buffer.bytes[shift : shift + 256].copy().view(np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(view, raw + raw)


def test_a_pointer_into_the_middle_of_a_buffer() -> None:
    x = _normal(100)
    args = buffers(x, np.zeros_like(x))
    run_kernel(vector_add(20, 16), [PointerArg(args[0].buffer, 40), args[0], args[1]])
    np.testing.assert_array_equal(contents(args[1], x)[:20], x[10:30] + x[:20])


def test_an_absolute_address_is_refused_by_name() -> None:
    build = Build()
    build.load(-1, make_range(0, 4))
    with pytest.raises(UnsupportedOpError, match="absolute address"):
        run_kernel(build.trace((1, 1, 1)), [])


def test_an_unknown_operation_names_the_nearest() -> None:
    build = Build()
    build.store(0, make_range(0, 4), build.math("math.tahn", Splat(1.0, (4,), float32)))
    with pytest.raises(UnsupportedOpError, match=r"math\.tahn at .*math\.tanh"):
        run_kernel(build.trace((1, 1, 1)), buffers(np.zeros(4, np.float32)))


@pytest.mark.adr("0005-D6")
def test_values_of_one_launch_are_never_seen_by_the_next() -> None:
    build = Build()
    at = make_range(0, 8)
    x = build.load(0, at, float32, Predicate((8,), less(at, 4).terms))
    build.store(1, at, x)
    trace = build.trace((1, 1, 1))
    first, second = _normal(8), _normal(8)
    for x0 in (first, second):
        args = buffers(x0, np.zeros_like(x0))
        run_kernel(trace, args)
        np.testing.assert_array_equal(contents(args[1], x0), np.where(np.arange(8) < 4, x0, 0))


@pytest.mark.usefixtures("collects_own")
def test_a_plan_dies_with_its_trace() -> None:
    trace = vector_add(100, 16)
    args = buffers(*[np.zeros(100, np.float32)] * 3)
    run_kernel(trace, args)
    alive = weakref.ref(trace)
    del trace
    gc.collect()
    assert alive() is None


def test_a_static_address_outside_its_tensor_is_caught_too() -> None:
    args = buffers(*[np.zeros(40, np.float32)] * 3)
    build = Build()
    at = programs(np.arange(4) * 16) + make_range(0, 16)
    build.store(0, at, build.load(1, at))
    with pytest.raises(OutOfBoundsError, match=r"arg1\+160 \(program \(2, 0, 0\)\)"):
        run_kernel(build.trace((4, 1, 1)), args)


def test_a_two_axis_grid_of_tiles_with_ragged_edges() -> None:
    build = Build()
    rows, columns, tile = 50, 70, 16
    grid_n = -(-columns // tile)
    pid = np.arange(-(-rows // tile) * grid_n)
    shape = (tile, tile)
    row = (programs(pid // grid_n * tile) + make_range(0, tile)).with_shape((tile,))
    column = (programs(pid % grid_n * tile) + make_range(0, tile)).with_shape((tile,))
    at = along(row, 0, shape) * uniform(columns) + along(column, 1, shape)
    in_rows = less(row, rows).with_shape(shape, {0: 0})
    mask = in_rows & less(column, columns).with_shape(shape, {0: 1})
    bias = build.load(1, along(column, 1, shape), float32, mask)
    x = build.load(0, at, float32, mask)
    build.store(0, at, build.math("arith.addf", x, bias), float32, mask)
    x0, b0 = _normal(rows, columns), _normal(columns)
    args = buffers(x0, b0)
    run_kernel(build.trace((len(pid), 1, 1)), args)
    np.testing.assert_array_equal(contents(args[0], x0), x0 + b0)


@pytest.mark.parametrize("masked", [False, True])
def test_rows_scattered_by_data_keep_the_last_of_each(masked: bool) -> None:
    build = Build()
    width, count = 6, 25
    lane = make_range(0, width)
    row = build.load(0, programs(np.arange(count)), int64)
    offset = build.math("arith.muli", row, Splat(width * 4, (), int64))
    spread = build.math("tt.splat", offset, shape=(width,))
    x = build.load(1, programs(np.arange(count) * width) + lane)
    mask = less(lane, 4) if masked else Predicate((width,))
    build.store(2, lane, x, float32, mask, gather=spread)
    index, x0 = RNG.integers(0, 9, count), _normal(count, width)
    out = np.zeros((9, width), np.float32)
    args = buffers(index, x0, out)
    run_kernel(build.trace((count, 1, 1)), args)
    end = 4 if masked else width
    for where, values in zip(index, x0, strict=True):
        out[where, :end] = values[:end]
    np.testing.assert_array_equal(contents(args[2], out), out)


def test_a_kernel_that_stores_through_no_tensor_is_told_which_parameter() -> None:
    trace = vector_add(16, 16)
    x = buffers(np.zeros(16, np.float32))[0]
    with pytest.raises(UsageError, match=r"parameter 2, which must be a tensor, but got None"):
        run_kernel(trace, [x, x, None])
