"""Boxes and indices of an access against a plain walk over all of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import PROGRAM, Predicate, Separable, axis_dim
from kernbench.replay.steps import geometry as geometries
from kernbench.replay.steps.geometry import (
    Box,
    Geometry,
    Stretch,
    build_geometry,
    nested_steps,
)

NOWHERE = -(1 << 40)


@st.composite
def accesses(draw: Any) -> tuple[Separable, Predicate, int]:
    """Offsets and masks as kernels make them: affine, swizzled, wrapped, ragged."""
    programs = draw(st.integers(1, 12))
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=0, max_size=2)))
    terms: dict[tuple[int, ...], Any] = {}
    masks: dict[tuple[int, ...], Any] = {}
    pid = np.arange(programs)
    if draw(st.booleans()):
        width = draw(st.integers(1, 5))
        terms[(PROGRAM,)] = 4 * (pid // width * 50 + pid % width * draw(st.integers(0, 9)))
    for axis, length in enumerate(shape):
        lane = np.arange(length)
        stride = draw(st.sampled_from([0, 1, 7, 60, -1, -8]))
        form = draw(st.sampled_from(["shared", "wrapped", "none"]))
        if form == "shared":
            terms[(axis_dim(axis),)] = 4 * stride * lane
        elif form == "wrapped":
            modulus = draw(st.integers(1, 30))
            terms[(PROGRAM, axis_dim(axis))] = (
                4 * stride * ((pid[:, None] * length + lane) % modulus)
            )
        edge = draw(st.sampled_from(["none", "shared", "ragged"]))
        if edge == "shared":
            masks[(axis_dim(axis),)] = lane < draw(st.integers(0, length))
        elif edge == "ragged":
            limit = draw(st.integers(0, programs * length))
            masks[(PROGRAM, axis_dim(axis))] = pid[:, None] * length + lane < limit
    return Separable(shape, 8, terms), Predicate(shape, masks), programs


@given(accesses(), st.booleans())
def test_parts_touch_exactly_the_active_elements(
    access: tuple[Separable, Predicate, int], ordered: bool
) -> None:
    offset, mask, programs = access
    dims = (PROGRAM, *(axis_dim(a) for a in range(len(offset.shape))))
    full = (programs, *offset.shape)
    expected = np.broadcast_to(offset.dense(dims), full)
    active = np.broadcast_to(mask.dense(dims), full)

    geometry = build_geometry(offset, mask, 4, programs, ordered=ordered, narrow=False)
    check(geometry, np.where(active, expected, NOWHERE))
    assert geometry.covers == bool(np.broadcast_to(active, full).all()) or not active.size


def check(geometry: Geometry, expected: Any) -> None:
    """Compare the byte of each element, by the parts, with what is expected."""
    result = np.full(geometry.shape, NOWHERE, dtype=np.int64)
    for part in geometry.parts:
        if isinstance(part, Box):
            counts = np.indices(part.view_shape)
            where = part.offset + sum(
                (c * s for c, s in zip(counts, part.view_strides, strict=True)),
                np.zeros(part.view_shape, np.int64),
            )
            result[part.where] = where.reshape(part.merged)
        elif isinstance(part, Stretch):
            assert len(part.offsets()) == part.size
            result.reshape(-1)[part.first : part.first + part.size] = part.offsets()
        else:
            result.reshape(-1)[part.positions] = part.offsets + part.low
    np.testing.assert_array_equal(np.broadcast_to(result, expected.shape), expected)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometries, "_SMALL_PART", 1)


@pytest.mark.usefixtures("_small")
@given(
    digits=st.lists(st.tuples(st.integers(2, 7), st.integers(-30, 30)), min_size=1, max_size=4),
    first=st.integers(0, 40),
    programs=st.integers(1, 12),
    lanes=st.sampled_from((4, 8, 16)),
    limit=st.integers(0, 200),
    ordered=st.booleans(),
)
def test_elements_that_are_numbered_and_divided_are_stretches_of_memory(
    digits: list[tuple[int, int]], first: int, programs: int, lanes: int, limit: int, ordered: bool
) -> None:
    index = first + np.arange(programs * lanes).reshape(programs, lanes)
    left, where = index, np.zeros_like(index)
    for size, stride in digits:
        left, digit = np.divmod(left, size)
        where += 4 * stride * digit
    where += 4 * 1000 * left
    active = index < first + limit
    dims = (PROGRAM, axis_dim(0))
    mask = Predicate((lanes,), {dims: active})
    offset = Separable((lanes,), 0, {dims: where})
    geometry = build_geometry(offset, mask, 4, programs, ordered=ordered, narrow=False)
    check(geometry, np.where(active, where, NOWHERE))


def test_a_transposition_is_a_few_stretches_and_stays_small() -> None:
    """(4, 16, 12, 64) to (4, 12, 16, 64), in programs that begin and end anywhere in it."""
    index = 50 + np.arange(23 * 1024).reshape(23, 1024)
    x0, x1, x2, x3 = index % 64, index // 64 % 16, index // 1024 % 12, index // 12288
    terms: dict[tuple[int, ...], Any] = {
        (PROGRAM, axis_dim(0)): 4 * (x0 + 64 * x2 + 768 * x1 + 12288 * x3)
    }
    offset = Separable((1024,), 0, terms)
    geometry = build_geometry(offset, Predicate((1024,)), 4, 23, ordered=False, narrow=False)
    assert {type(part) for part in geometry.parts} == {Stretch}
    assert len(geometry.parts) <= 7
    assert geometry.covers
    assert geometry.size_bytes < 2048


def test_a_plain_tile_is_one_view() -> None:
    offset = Separable((8,), 0, {(PROGRAM,): 32 * np.arange(4), (axis_dim(0),): 4 * np.arange(8)})
    geometry = build_geometry(offset, Predicate((8,)), 4, 4, ordered=True, narrow=False)
    assert geometry.whole is not None
    assert geometry.whole.view_strides == (32, 4)


def test_a_store_that_overlaps_itself_keeps_program_order() -> None:
    offset = Separable((8,), 0, {(PROGRAM,): 4 * np.arange(4), (axis_dim(0),): 4 * np.arange(8)})
    geometry = build_geometry(offset, Predicate((8,)), 4, 4, ordered=True, narrow=False)
    assert [type(part).__name__ for part in geometry.parts] == ["Indices"]


@pytest.mark.parametrize(
    ("base", "steps"),
    [
        ([5], ((1, 0),)),
        ([0, 0, 0], ((3, 0),)),
        ([0, 1, 10, 11, 20, 21], ((3, 10), (2, 1))),
        ([0, 1, 10, 12], None),
        ([0, 1, 10], None),
    ],
)
def test_nested_steps(base: list[int], steps: Any) -> None:
    assert nested_steps(np.array(base)) == steps
