from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import (
    PROGRAM,
    UNKNOWN_LINE,
    Access,
    DmaRead,
    KernelTrace,
    Loop,
    Predicate,
    ProgramGroup,
    Separable,
    Tile,
    axis_dim,
    loop_dim,
)
from kernbench.dtypes import float16
from kernbench.kernel_ir import footprints, out_of_bounds
from tests.kernel_ir.cases import spelled_out, trace
from tests.tiers import examples

QUICK = examples(60)
SIZES = {PROGRAM: 3, loop_dim(0): 4, axis_dim(0): 5, axis_dim(1): 2}
LENGTHS = {dim: size for dim, size in SIZES.items() if dim < axis_dim(0)}


@st.composite
def keys(draw: st.DrawFn) -> tuple[int, ...]:
    outer = draw(st.sets(st.sampled_from([PROGRAM, loop_dim(0)])))
    axis = draw(st.sets(st.sampled_from([axis_dim(0), axis_dim(1)]), max_size=1))
    return tuple(sorted(outer | axis))


@st.composite
def one_load(draw: st.DrawFn) -> KernelTrace:
    """A kernel of one masked load in a loop, with any offsets and any mask."""
    offset, mask = Separable((5, 2), draw(st.integers(-5, 5))), Predicate((5, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    for dims in draw(st.lists(keys(), max_size=4)):
        shape = tuple(SIZES[dim] for dim in dims)
        offset += Separable((5, 2), 0, {dims: np.asarray(rng.integers(-9, 9, shape))})
    for dims in draw(st.lists(keys(), max_size=3)):
        shape = tuple(SIZES[dim] for dim in dims)
        mask &= Predicate((5, 2), {dims: np.asarray(rng.random(shape) < draw(st.floats(0, 1)))})
    read = DmaRead(Tile(0, (5, 2), float16), Access(0, offset, float16), mask, None, UNKNOWN_LINE)
    loop = Loop(0, 4, (read,), (), 1, UNKNOWN_LINE)
    group = ProgramGroup(np.array([1, 4, 6]), (loop,))
    return KernelTrace("k", (4, 2, 1), 4, 1, (group,), 1, 0, UNKNOWN_LINE, (0,))


def read_of(kernel_trace: KernelTrace) -> DmaRead:
    loop = kernel_trace.groups[0].body[0]
    assert isinstance(loop, Loop)
    read = loop.body[0]
    assert isinstance(read, DmaRead)
    return read


@pytest.mark.adr("0004-D5")
@QUICK
@given(one_load())
def test_a_footprint_is_the_extent_of_the_lanes_that_are_on(found: KernelTrace) -> None:
    read = read_of(found)
    assert isinstance(read.mask, Predicate)
    offsets, on = spelled_out(read.source, read.mask, LENGTHS)
    touched = offsets[on]
    if not touched.size:
        assert footprints(found) == ()
        return
    (footprint,) = footprints(found)
    assert (footprint.low, footprint.high) == (touched.min(), touched.max() + 2)
    assert footprint.is_complete


@QUICK
@given(one_load(), st.integers(0, 20), st.integers(0, 20))
def test_out_of_bounds_finds_the_first_offender_and_nothing_else(
    found: KernelTrace, before: int, after: int
) -> None:
    read = read_of(found)
    assert isinstance(read.mask, Predicate)
    offsets, on = spelled_out(read.source, read.mask, LENGTHS)
    bad = on & ((offsets < -before) | (offsets + 2 > after))
    offender = out_of_bounds(found, 0, before, after)
    if not bad.any():
        assert offender is None
        return
    assert offender is not None
    first = np.unravel_index(np.argmax(bad.reshape(-1)), bad.shape)
    linear = (1, 4, 6)[first[0]]
    assert offender.program == (linear % 4, linear // 4, 0)
    assert offender.byte_offset == offsets[first]
    assert (offender.access_bytes, offender.is_store) == (2, False)
    assert offender.command is read


@QUICK
@given(m=st.integers(1, 300), n=st.integers(1, 300), k=st.integers(1, 150), cut=st.integers(1, 40))
def test_matmul_stays_inside_its_tensors_and_just_so(m: int, n: int, k: int, cut: int) -> None:
    grid = -(-m // 64) * -(-n // 64)
    result = trace("matmul", (grid, 1, 1), {3: m, 4: n, 5: k, 6: k, 7: n, 8: n})
    for param, size in enumerate((m * k * 2, k * n * 2, m * n * 2)):
        assert out_of_bounds(result, param, 0, size) is None
        offender = out_of_bounds(result, param, 0, size - cut)
        assert offender is not None
        assert offender.is_store == (param == 2)
        assert offender.byte_offset + 2 > size - cut


def test_a_mask_over_loop_and_lanes_guards_a_pointer_that_advances_with_the_loop() -> None:
    """`offs_k < K - k * BK` keeps the last iteration inside, though the tile sticks out."""
    result = trace("matmul", (1, 1, 1), {3: 64, 4: 64, 5: 33, 6: 33, 7: 64, 8: 64})
    assert [(footprint.low, footprint.high) for footprint in footprints(result)] == [
        (0, 64 * 33 * 2),
        (0, 33 * 64 * 2),
        (0, 64 * 64 * 2),
    ]


def test_the_error_can_name_line_program_and_offset() -> None:
    result = trace("add", (4, 1, 1), {3: 1000})
    offender = out_of_bounds(result, 2, 0, 3996)
    assert offender is not None
    assert offender.program == (3, 0, 0)
    assert offender.byte_offset == 999 * 4
    assert offender.is_store
    assert str(offender.line).startswith("kernels.py:")


@pytest.mark.adr("0004-D5")
def test_accesses_through_data_are_left_to_replay() -> None:
    result = trace("gather", (4, 1, 1), {3: 5})
    by_param = {footprint.param: footprint for footprint in footprints(result)}
    assert not by_param[1].is_complete
    assert by_param[0].is_complete
    assert out_of_bounds(result, 1, 0, 0) is None


def test_a_grid_larger_than_the_data_is_no_error_when_masked() -> None:
    result = trace("add", (40, 1, 1), {3: 1000})
    assert out_of_bounds(result, 0, 0, 4000) is None


@pytest.mark.parametrize("programs", [1, 7])
def test_a_large_elimination_is_done_in_parts(
    monkeypatch: pytest.MonkeyPatch, programs: int
) -> None:
    # The package offers the function of the same name.
    module = sys.modules["kernbench.kernel_ir.analysis.footprints"]
    result = trace("add", (programs, 1, 1), {3: programs * 256 - 5})
    whole = module._footprints(result)
    monkeypatch.setattr(module, "_MAX_ELEMENTS", 300)
    assert list(module._footprints(result)) == list(whole)
