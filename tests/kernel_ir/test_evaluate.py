from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    PROGRAM,
    DmaRead,
    DmaWrite,
    Gemm,
    IndexTile,
    Loop,
    Math,
    MathClass,
    Param,
    Predicate,
    Reduce,
    Splat,
    Tile,
    loop_dim,
)
from kernbench.errors import UnsupportedOpError, UsageError
from kernbench.kernel_ir import evaluate, parse_module
from tests.kernel_ir.cases import VERSIONS, dma, kernel, module, spelled_out, trace
from tests.tiers import examples

QUICK = examples(25)
BM = BN = 64
BK = 32


def tile_of(pid: int, m: int, n: int) -> tuple[int, int]:
    """The tutorial's grouped order of tiles, GROUP_SIZE_M = 8, in plain Python."""
    num_m, num_n = -(-m // BM), -(-n // BN)
    width = 8 * num_n
    first = pid // width * 8
    rows = min(num_m - first, 8)
    return first + pid % width % rows, pid % width // rows


@pytest.mark.parametrize("version", VERSIONS)
@QUICK
@given(m=st.integers(1, 400), n=st.integers(1, 400), k=st.integers(1, 200))
def test_matmul_touches_what_the_tutorial_says(version: str, m: int, n: int, k: int) -> None:
    grid = -(-m // BM) * -(-n // BN)
    trips = -(-k // BK)
    stride_a, stride_b, stride_c = k + 3, n + 5, n + 7
    ints = {3: m, 4: n, 5: k, 6: stride_a, 7: stride_b, 8: stride_c}
    result = trace("matmul", (grid, 1, 1), ints, version=version)
    (group,) = result.groups
    loop = group.body[0]
    assert isinstance(loop, Loop)
    assert loop.trip_count == trips
    lengths = {PROGRAM: grid, loop_dim(loop.loop_id): trips}
    (_, a, a_mask), (_, b, b_mask), (_, c, c_mask) = dma(group)
    tiles = np.array([tile_of(pid, m, n) for pid in range(grid)])
    rows = tiles[:, 0, None] * BM + np.arange(BM)
    columns = tiles[:, 1, None] * BN + np.arange(BN)
    inner = np.arange(trips)[:, None] * BK + np.arange(BK)

    offsets, mask = spelled_out(a, a_mask, lengths)
    expected = (rows % m)[:, None, :, None] * stride_a + inner[None, :, None, :]
    np.testing.assert_array_equal(offsets, expected * 2)
    np.testing.assert_array_equal(mask, np.broadcast_to((inner < k)[None, :, None, :], mask.shape))

    offsets, mask = spelled_out(b, b_mask, lengths)
    expected = inner[None, :, :, None] * stride_b + (columns % n)[:, None, None, :]
    np.testing.assert_array_equal(offsets, expected * 2)
    np.testing.assert_array_equal(mask, np.broadcast_to((inner < k)[None, :, :, None], mask.shape))

    offsets, mask = spelled_out(c, c_mask, {PROGRAM: grid})
    expected = rows[:, :, None] * stride_c + columns[:, None, :]
    np.testing.assert_array_equal(offsets, expected * 2)
    np.testing.assert_array_equal(mask, (rows < m)[:, :, None] & (columns < n)[:, None, :])


@pytest.mark.parametrize("version", VERSIONS)
def test_matmul_is_a_loop_of_load_load_dot(version: str) -> None:
    result = trace(
        "matmul", (64, 1, 1), {3: 512, 4: 512, 5: 512, 6: 512, 7: 512, 8: 512}, version=version
    )
    (group,) = result.groups
    loop, convert, store = group.body
    assert isinstance(loop, Loop)
    assert isinstance(convert, Math)
    assert isinstance(store, DmaWrite)
    load_a, load_b, dot = loop.body
    assert isinstance(load_a, DmaRead)
    assert isinstance(load_b, DmaRead)
    assert isinstance(dot, Gemm)
    assert (dot.a, dot.b) == (load_a.dst, load_b.dst)
    (carried,) = loop.carried
    assert carried.init == Splat(0.0, (64, 64), dot.dst.dtype)
    assert (carried.arg, carried.yielded) == (dot.acc, dot.dst)
    assert convert.inputs == (carried.result,)
    assert (loop.num_stages, convert.op, convert.cost) == (3, "arith.truncf", MathClass.CONVERT)
    # Whole tiles need no mask, and the modulo of rows that exist changes nothing.
    assert all(mask.is_true for _, _, mask in dma(group))


@QUICK
@given(n=st.integers(1, 3000), programs=st.integers(1, 12))
def test_vector_add_touches_its_elements(n: int, programs: int) -> None:
    result = trace("add", (programs, 1, 1), {3: n})
    (group,) = result.groups
    for _, access, mask in dma(group):
        offsets, on = spelled_out(access, mask, {PROGRAM: programs})
        elements = np.arange(programs * 256).reshape(programs, 256)
        np.testing.assert_array_equal(offsets, elements * 4)
        np.testing.assert_array_equal(on, elements < n)


@QUICK
@given(rows=st.integers(0, 40), columns=st.integers(1, 1024), programs=st.integers(1, 8))
def test_softmax_gives_each_row_to_one_program(rows: int, columns: int, programs: int) -> None:
    ints = {2: columns, 3: columns, 4: rows, 5: columns}
    result = trace("softmax", (programs, 1, 1), ints)
    seen = []
    for group in result.groups:
        for loop in group.body:
            assert isinstance(loop, Loop)
            lengths = {PROGRAM: len(group.program_ids), loop_dim(loop.loop_id): loop.trip_count}
            load = loop.body[0]
            assert isinstance(load, DmaRead)
            assert isinstance(load.mask, Predicate)
            offsets, on = spelled_out(load.source, load.mask, lengths)
            assert (on == (np.arange(1024) < columns)).all()
            seen += list((offsets[..., 0] // (4 * columns)).reshape(-1))
    assert sorted(seen) == list(range(rows))
    ids = np.concatenate([group.program_ids for group in result.groups])
    assert sorted(ids) == list(range(programs))


@pytest.mark.adr("0004-D3")
def test_groups_split_programs_by_trip_count() -> None:
    result = trace("causal", (4, 1, 1), {2: 5})
    assert [list(group.program_ids) for group in result.groups] == [[0], [1], [2], [3]]
    trips = [
        [command.trip_count for command in group.body if isinstance(command, Loop)]
        for group in result.groups
    ]
    assert trips == [[1], [2], [3], [4]]


def test_an_early_return_leaves_programs_without_commands() -> None:
    result = trace("early", (6, 1, 1), {1: 3})
    assert {tuple(group.program_ids): len(group.body) for group in result.groups} == {
        (0, 2): 1,
        (1,): 1,
        (3, 4, 5): 0,
    }


def test_slots_and_loops_are_unique_over_all_groups() -> None:
    result = trace("causal", (5, 1, 1), {2: 5})
    slots = [c.dst.slot for c in result.commands() if isinstance(c, DmaRead | Math)]
    loops = [c.loop_id for c in result.commands() if isinstance(c, Loop)]
    assert len(set(slots)) == len(slots)
    assert max(slots) < result.num_slots
    assert sorted(loops) == list(range(5))


@pytest.mark.adr("0004-D3")
def test_a_loop_whose_body_branches_on_its_index_is_cut_where_the_branch_changes() -> None:
    result = trace("condloop", (1, 1, 1), {1: 6, 2: 4})
    (group,) = result.groups
    first, second, third, fourth, last = group.body
    alone = [command for command in (first, third) if isinstance(command, DmaWrite)]
    assert [store.dest.offset.const // 4 for store in alone] == [0, 3]
    # The second loop only chooses an integer, which has a closed form.
    parts = [command for command in (second, fourth, last) if isinstance(command, Loop)]
    assert [loop.trip_count for loop in parts] == [2, 2, 6]


@pytest.mark.adr("0004-D3")
def test_a_loop_that_branches_to_and_fro_is_unrolled() -> None:
    result = trace("condloop", (1, 1, 1), {1: 60, 2: 4})
    (group,) = result.groups
    stores = [command for command in group.body if isinstance(command, DmaWrite)]
    assert [store.dest.offset.const // 4 for store in stores] == list(range(60))


@pytest.mark.adr("0004-D3")
def test_a_long_loop_that_is_another_at_first_is_planned_as_two() -> None:
    """A million iterations: evaluated one by one, they would be too many to plan."""
    body = """\
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %end = arith.constant 1048576 : i32
    %start = arith.constant 0.0 : f32
    %sum = scf.for %i = %zero to %end step %one iter_args(%before = %start) -> (f32) : i32 {
      %at = tt.addptr %x, %i : !tt.ptr<f32>, i32
      %value = tt.load %at : !tt.ptr<f32>
      %is_first = arith.cmpi eq, %i, %zero : i32
      %next = scf.if %is_first -> (f32) {
        scf.yield %value : f32
      } else {
        %both = arith.addf %before, %value : f32
        scf.yield %both : f32
      }
      scf.yield %next : f32
    }
    tt.store %x, %sum : !tt.ptr<f32>"""
    (group,) = evaluate(kernel(body), (1, 1, 1), {}, num_warps=4, num_stages=1).groups
    (loop,) = [command for command in group.body if isinstance(command, Loop)]
    assert loop.trip_count == (1 << 20) - 1


@pytest.mark.adr("0004-D3")
def test_a_branch_by_program_and_iteration_is_not_laid_out_over_both() -> None:
    """It takes 400 million truth values; those of programs and of iterations are 104,000."""
    body = """\
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %half = arith.constant 2000 : i32
    %end = arith.constant 4000 : i32
    %program = tt.get_program_id x : i32
    %is_low = arith.cmpi slt, %program, %half : i32
    scf.for %i = %zero to %end step %one : i32 {
      %is_early = arith.cmpi slt, %i, %half : i32
      %is_both = arith.andi %is_early, %is_low : i1
      scf.if %is_both {
        %value = tt.load %x : !tt.ptr<f32>
        tt.store %x, %value : !tt.ptr<f32>
      }
    }"""
    tracemalloc.start()
    try:
        result = evaluate(kernel(body), (100_000, 1, 1), {}, num_warps=4, num_stages=1)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert sorted(len(group.program_ids) for group in result.groups) == [2_000, 98_000]


def test_an_inner_bound_that_depends_on_the_outer_index_unrolls_the_outer_loop() -> None:
    result = trace("tri", (1, 1, 1), {1: 5})
    (group,) = result.groups
    assert [loop.trip_count for loop in group.body if isinstance(loop, Loop)] == [1, 2, 3, 4]


@pytest.mark.adr("0004-D2")
def test_nested_loops_stay_rolled_and_pointers_get_closed_forms() -> None:
    result = trace("nested", (1, 1, 1), {1: 5, 2: 7})
    (group,) = result.groups
    (outer,) = group.body
    assert isinstance(outer, Loop)
    (inner,) = [command for command in outer.body if isinstance(command, Loop)]
    assert not outer.carried
    assert not inner.carried
    ((_, access, mask),) = dma(group)
    lengths = {loop_dim(outer.loop_id): 5, loop_dim(inner.loop_id): 7}
    offsets, _ = spelled_out(access, mask, lengths)
    np.testing.assert_array_equal(offsets, 4 * np.arange(35).reshape(5, 7))


@pytest.mark.adr("0004-D2")
def test_a_recurrence_that_is_not_affine_is_evaluated_step_by_step() -> None:
    result = trace("fib", (1, 1, 1), {1: 50})
    (group,) = result.groups
    (loop,) = group.body
    assert isinstance(loop, Loop)
    assert not loop.carried
    (store,) = loop.body
    assert isinstance(store, DmaWrite)
    assert isinstance(store.value, IndexTile)
    values = store.value.values.dense((loop_dim(loop.loop_id),))
    a, b = 0, 1
    for value in values:
        # i32 wraps around.
        assert value == (a + 2**31) % 2**32 - 2**31
        a, b = b, a + b


@pytest.mark.adr("0004-D1")
def test_a_loaded_index_makes_a_gather_with_byte_offsets() -> None:
    result = trace("gather", (4, 1, 1), {3: 5})
    (group,) = result.groups
    gathers = [access for _, access, _ in dma(group) if access.gather is not None]
    assert [access.param for access in gathers] == [1, 1]
    for access in gathers:
        assert access.gather is not None
        assert access.gather.dtype.name == "int64"
        assert access.gather.shape == access.shape
    commands = {command.dst: command for command in group.body if isinstance(command, Math)}
    assert gathers[0].gather is not None
    splat = commands[gathers[0].gather]
    assert splat.op == "tt.splat"
    (scaled,) = splat.inputs
    assert isinstance(scaled, Tile)
    assert commands[scaled].op == "arith.muli"
    assert commands[scaled].inputs[1] == Splat(4, (), scaled.dtype)


@pytest.mark.adr("0004-D2")
def test_a_pointer_that_advances_by_data_is_carried_as_data() -> None:
    result = trace("walk_ptr", (1, 1, 1), {3: 5})
    loop = next(command for command in result.commands() if isinstance(command, Loop))
    names = {carried.arg.dtype.name for carried in loop.carried}
    assert names == {"int64", "float32"}
    load = next(command for command in loop.body if isinstance(command, DmaRead))
    assert load.source.gather in {carried.arg for carried in loop.carried}


@pytest.mark.adr("0004-D1")
def test_what_is_not_separable_becomes_data_and_is_not_refused() -> None:
    result = trace("swizzle", (1, 1, 1), {2: 5})
    (group,) = result.groups
    xor = next(c for c in group.body if isinstance(c, Math) and c.op == "arith.xori")
    assert all(isinstance(item, IndexTile) for item in xor.inputs)
    load = next(command for command in group.body if isinstance(command, DmaRead))
    assert isinstance(load.mask, Tile)
    assert load.source.gather is not None


def test_division_by_a_block_keeps_offsets_separable() -> None:
    result = trace("flat", (3, 1, 1), {2: 10, 3: 64, 4: 100, 5: 3})
    (group,) = result.groups
    (_, access, _), _ = dma(group)
    # 64 columns in blocks of 64: quotient per program, remainder per lane.
    assert all(len(dims) == 1 for dims in access.offset.terms)


@pytest.mark.adr("0004-D4")
def test_integers_of_32_bits_wrap_around() -> None:
    result = trace("overflow", (4, 1, 1), {2: 1 << 30})
    (group,) = result.groups
    (convert,) = [command for command in group.body if isinstance(command, Math)]
    (value,) = convert.inputs
    assert isinstance(value, IndexTile)
    first = value.values.dense((PROGRAM, 1 << 20))[:, 0]
    assert list(first) == [0, 1 << 30, -(1 << 31), -(1 << 30)]


@pytest.mark.adr("0004-D3")
def test_programs_whose_indices_wrap_around_get_their_own_group() -> None:
    """The last programs of a large tensor go beyond it, under a mask; all indices take 270 MB."""
    body = """\
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %end = arith.constant 513 : i32
    %step = arith.constant dense<4194176> : tensor<64xi32>
    %program = tt.get_program_id x : i32
    %lanes = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %size = arith.constant 64 : i32
    %first = arith.muli %program, %size : i32
    %firsts = tt.splat %first : i32 -> tensor<64xi32>
    %columns = arith.addi %firsts, %lanes : tensor<64xi32>
    scf.for %i = %zero to %end step %one : i32 {
      %rows = tt.splat %i : i32 -> tensor<64xi32>
      %offsets = arith.muli %rows, %step : tensor<64xi32>
      %both = arith.addi %offsets, %columns : tensor<64xi32>
      %from = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
      %at = tt.addptr %from, %both : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
      %value = tt.load %at : tensor<64x!tt.ptr<f32>>
      tt.store %at, %value : tensor<64x!tt.ptr<f32>>
    }"""
    tracemalloc.start()
    try:
        result = evaluate(kernel(body), (1025, 1, 1), {}, num_warps=4, num_stages=1)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert [group.program_ids.tolist() for group in result.groups] == [[*range(1024)], [1024]]


def test_a_float_parameter_is_read_at_replay() -> None:
    result = trace("misc", (1, 1, 1), {2: 5})
    params = {
        item.index
        for command in result.commands()
        if isinstance(command, Math)
        for item in command.inputs
        if isinstance(item, Param)
    }
    assert params == {3}


def test_usual_reductions_have_names_and_others_a_region() -> None:
    assert [
        c.combine for c in trace("misc", (1, 1, 1), {2: 5}).commands() if isinstance(c, Reduce)
    ] == [
        "argmax",
        "arith.addf",
        "arith.minnumf",
        "arith.maxnumf",
        "arith.addf",
    ]
    custom = [c for c in trace("custom", (1, 1, 1), {}).commands() if isinstance(c, Reduce)]
    assert [c.combine for c in custom] == ["region", "arith.xori", "argmin", "arith.maxsi"]
    region = custom[0].region
    assert region is not None
    assert len(region.args) == 2
    assert [c.op for c in region.commands] == [
        "arith.mulf",
        "arith.mulf",
        "arith.addf",
        "arith.maxnumf",
        "arith.addf",
    ]


def test_a_call_runs_the_callee_in_place() -> None:
    result = trace("callk", (4, 1, 1), {1: 5})
    ((_, access, _),) = dma(result.groups[0])
    np.testing.assert_array_equal(access.offset.dense((PROGRAM,)), 4 * 5 * np.arange(4))


def test_a_while_loop_on_known_integers_is_unrolled() -> None:
    result = trace("wh", (1, 1, 1), {1: 5})
    reads = [command for command in result.commands() if isinstance(command, DmaRead)]
    assert [read.source.offset.const for read in reads] == [0, 4, 8, 12, 16]


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8"])
def test_block_pointers_are_pointers_and_masks(version: str) -> None:
    result = trace("blockptr", (4, 1, 1), {2: 250, 3: 256}, version=version)
    (group,) = result.groups
    (loop,) = group.body
    assert isinstance(loop, Loop)
    assert not loop.carried
    for _, access, mask in dma(group):
        offsets, on = spelled_out(access, mask, {PROGRAM: 4, loop_dim(loop.loop_id): 4})
        rows = np.arange(256).reshape(4, 1, 64, 1)
        columns = np.arange(256).reshape(1, 4, 1, 64)
        np.testing.assert_array_equal(offsets, 4 * (rows * 256 + columns))
        np.testing.assert_array_equal(on, np.broadcast_to(rows < 250, on.shape))


@pytest.mark.parametrize("version", VERSIONS)
def test_descriptors_are_pointers_and_masks(version: str) -> None:
    result = trace("desc", (2, 3, 1), {3: 100, 4: 150, 5: 70}, version=version)
    (group,) = result.groups
    (_, a, a_mask), _, (_, c, c_mask) = dma(group)
    offsets, on = spelled_out(a, a_mask, {PROGRAM: 6, loop_dim(0): 3})
    rows = np.arange(6).reshape(6, 1, 1, 1) % 2 * 64 + np.arange(64).reshape(1, 1, 64, 1)
    inner = np.arange(96).reshape(1, 3, 1, 32)
    np.testing.assert_array_equal(offsets, 2 * (rows * 70 + inner))
    np.testing.assert_array_equal(on, (rows < 100) & (inner < 70))
    offsets, on = spelled_out(c, c_mask, {PROGRAM: 6})
    columns = np.arange(6).reshape(6, 1, 1) // 2 * 64 + np.arange(64)
    np.testing.assert_array_equal(offsets, 2 * (rows[:, 0] * 150 + columns))
    np.testing.assert_array_equal(on, (rows[:, 0] < 100) & (columns < 150))


def test_an_empty_grid_has_no_groups() -> None:
    assert trace("add", (0, 1, 1), {3: 5}).groups == ()


def test_programs_that_a_long_mask_cuts_off_get_their_own_group() -> None:
    result = trace("add", (8192, 1, 1), {3: 8190 * 256 + 10})
    assert [len(group.program_ids) for group in result.groups] == [8190, 1, 1]
    masks = [[mask for _, _, mask in dma(group)] for group in result.groups]
    assert all(mask.is_true for mask in masks[0])
    assert not any(mask.is_true for mask in masks[2])


# -- bad input --------------------------------------------------------------------------------


def test_an_unsupported_op_names_itself_the_kernel_and_the_line() -> None:
    text = """
#loc7 = loc("gelu.py":12:4)
module {
  tt.func public @gelu(%x: !tt.ptr<f32>) {
    %0 = tt.load %x : !tt.ptr<f32>
    %1 = tt.elementwise_inline_asm "tanh.approx.f32 $0, $1;" {pure} %0 : f32 -> f32 loc(#loc7)
    tt.store %x, %1 : !tt.ptr<f32>
    tt.return
  }
}
"""
    with pytest.raises(
        UnsupportedOpError,
        match=r"tt.elementwise_inline_asm in kernel gelu at gelu.py:12 .*tanh.approx",
    ):
        evaluate(parse_module(text), (1, 1, 1), {}, num_warps=4, num_stages=1)


def test_control_flow_on_data_says_what_it_depends_on() -> None:
    body = (
        "    %c = arith.constant 0.0 : f32\n"
        "    %v = tt.load %x : !tt.ptr<f32>\n"
        "    %b = arith.cmpf ogt, %v, %c : f32\n"
        "    scf.if %b {\n"
        "      tt.store %x, %c : !tt.ptr<f32>\n"
        "    }"
    )
    with pytest.raises(UnsupportedOpError, match=r"scf\.if in kernel k .*line 6.* depends on data"):
        evaluate(kernel(body), (1, 1, 1), {}, num_warps=4, num_stages=1)


def test_an_integer_without_a_value_is_named() -> None:
    with pytest.raises(UsageError, match=r"parameter 3 \(n\) of add"):
        trace("add", (1, 1, 1), {})


def test_a_negative_grid_is_refused() -> None:
    with pytest.raises(UsageError, match="three sizes"):
        evaluate(module("add"), (-1, 1, 1), {3: 1}, num_warps=4, num_stages=1)


def test_a_kernel_that_never_ends_is_refused() -> None:
    body = (
        "    %t = arith.constant true\n"
        "    cf.br ^bb1\n"
        "  ^bb1:\n"
        "    cf.cond_br %t, ^bb1, ^bb2\n"
        "  ^bb2:"
    )
    with pytest.raises(UnsupportedOpError, match="does it end"):
        evaluate(kernel(body), (1, 1, 1), {}, num_warps=4, num_stages=1)
