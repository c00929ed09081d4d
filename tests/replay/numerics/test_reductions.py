from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.commands import UNKNOWN_LINE, CombineRegion, Math, MathClass, Reduce, Splat, Tile
from kernbench.dtypes import as_dtype, float32
from kernbench.errors import UnsupportedOpError
from kernbench.replay.numerics.reductions import build_reduction

RNG = np.random.default_rng(3)


def reduce(combine: str, *arrays: Any, axis: int, region: CombineRegion | None = None) -> list[Any]:
    tiles = tuple(Tile(i, a.shape[1:], as_dtype(a.dtype)) for i, a in enumerate(arrays))
    shape = tuple(n for i, n in enumerate(tiles[0].shape) if i != axis)
    dsts = tuple(Tile(9 + i, shape, t.dtype) for i, t in enumerate(tiles))
    command = Reduce(dsts, combine, tiles, axis, UNKNOWN_LINE, region)
    result = build_reduction(command)(list(arrays))
    for dst, array in zip(dsts, result, strict=True):
        assert array.dtype == dst.dtype.numpy
        assert array.shape[1:] == dst.shape
    return result


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "i32", "i64"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["add", "max", "min"])
def test_sums_and_extremes_in_every_type(dtype: str, axis: int, name: str) -> None:
    x = RNG.integers(-3, 4, (5, 8, 16)).astype(as_dtype(dtype).numpy)
    is_float = as_dtype(dtype).is_floating_point
    combine = {
        "add": "arith.addf" if is_float else "arith.addi",
        "max": "arith.maxnumf" if is_float else "arith.maxsi",
        "min": "arith.minnumf" if is_float else "arith.minsi",
    }[name]
    (result,) = reduce(combine, x, axis=axis)
    whole: dict[str, Any] = {"add": np.sum, "max": np.max, "min": np.min}
    expected = whole[name](x.astype(float), axis=axis + 1)
    np.testing.assert_array_equal(result.astype(float), expected)


@pytest.mark.adr("0005-D5")
def test_a_half_sum_is_kept_in_float32_and_rounded_once() -> None:
    x = np.full((1, 4096), 1.0, np.float16)
    x[0, 0] = 2048
    (result,) = reduce("arith.addf", x, axis=0)
    assert result[0] == np.float16(2048 + 4095)


def test_nan_rules() -> None:
    x = np.array([[1.0, np.nan, 3.0]], np.float32)
    assert reduce("arith.maxnumf", x, axis=0)[0][0] == 3
    assert np.isnan(reduce("arith.maximumf", x, axis=0)[0][0])


def test_bits_and_unsigned() -> None:
    x = np.array([[1, -2, 7]], np.int32)
    assert reduce("arith.maxui", x, axis=0)[0].tolist() == [-2]
    assert reduce("arith.minui", x, axis=0)[0].tolist() == [1]
    assert reduce("arith.xori", x, axis=0)[0].tolist() == [1 ^ -2 ^ 7]
    flags = np.array([[True, False, True]])
    assert reduce("arith.ori", flags, axis=0)[0].tolist() == [True]
    assert reduce("arith.andi", flags, axis=0)[0].tolist() == [False]


def test_argmax_gives_the_first_of_equals_with_its_index() -> None:
    x = RNG.integers(0, 4, (6, 5, 9)).astype(np.float32)
    index = np.arange(9, dtype=np.int32).reshape(1, 1, 9)
    index = np.broadcast_to(index, (1, 5, 9))
    best, where = reduce("argmax", x, index, axis=1)
    np.testing.assert_array_equal(best, x.max(axis=2))
    np.testing.assert_array_equal(where, x.argmax(axis=2))
    best, where = reduce("argmin", x, index, axis=1)
    np.testing.assert_array_equal(where, x.argmin(axis=2))


@pytest.mark.parametrize("num_programs", [1, 6])
@pytest.mark.parametrize("combine", ["argmax", "argmin", "argmaxu", "argminu"])
def test_of_equals_the_lowest_index_wins_wherever_it_lies(combine: str, num_programs: int) -> None:
    x = RNG.integers(0, 3, (6, 5, 9)).astype(np.int32)
    index = np.stack([RNG.permutation(9) for _ in range(5 * num_programs)]).astype(np.int32)
    index = index.reshape(num_programs, 5, 9)
    for values in (x, x[:1]):
        best, where = reduce(combine, values, index, axis=1)
        extreme = (np.max if "max" in combine else np.min)(values, axis=2)
        lowest = np.where(values == extreme[..., None], index, 9).min(axis=2)
        assert (best == extreme).all()
        assert (where == lowest).all()


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 13])
def test_any_region_combines_neighbours_in_order(length: int) -> None:
    """Composition of affine maps: associative, but not commutative."""
    a0, b0, a1, b1 = (Tile(i, (), float32) for i in range(4))
    a, ab, b = (Tile(i, (), float32) for i in range(4, 7))
    region = CombineRegion(
        (a0, b0, a1, b1),
        (
            Math(a, "arith.mulf", (a0, a1), MathClass.SIMPLE, UNKNOWN_LINE),
            Math(ab, "arith.mulf", (b0, a1), MathClass.SIMPLE, UNKNOWN_LINE),
            Math(b, "arith.addf", (ab, b1), MathClass.SIMPLE, UNKNOWN_LINE),
        ),
        (a, b),
    )
    x = RNG.integers(-2, 3, (4, length)).astype(np.float32)
    y = RNG.integers(-2, 3, (4, length)).astype(np.float32)
    found_a, found_b = reduce("region", x, y, axis=0, region=region)
    for program in range(4):
        slope, shift = x[program, 0], y[program, 0]
        for i in range(1, length):
            slope, shift = slope * x[program, i], shift * x[program, i] + y[program, i]
        assert (found_a[program], found_b[program]) == (slope, shift)


def test_a_region_may_hold_constants() -> None:
    left, right, total, halved = (Tile(i, (), float32) for i in range(4))
    half = Splat(0.5, (), float32)
    region = CombineRegion(
        (left, right),
        (
            Math(total, "arith.addf", (left, right), MathClass.SIMPLE, UNKNOWN_LINE),
            Math(halved, "arith.mulf", (total, half), MathClass.SIMPLE, UNKNOWN_LINE),
        ),
        (halved,),
    )
    (result,) = reduce("region", np.array([[2.0, 4.0]], np.float32), axis=0, region=region)
    assert result.tolist() == [3.0]


def test_an_unknown_combine_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=r"math\.median"):
        reduce("math.median", np.zeros((1, 3), np.float32), axis=0)


def combined(left: tuple[float, int], right: tuple[float, int]) -> tuple[float, int]:
    """As ``triton.language.standard._argmax_combine`` has it."""
    wins = left[0] > right[0] or (left[0] == right[0] and left[1] < right[1])
    return left if wins else right


def shuffled(lanes: list[tuple[float, int]]) -> tuple[float, int]:
    """Combine as a warp does: every lane with the one whose number differs in one bit."""
    away = len(lanes) // 2
    while away:
        lanes = [combined(lane, lanes[at ^ away]) for at, lane in enumerate(lanes)]
        away //= 2
    return lanes[0]


def of_threads(values: list[float], num_warps: int) -> tuple[float, int]:
    """Reduce float32 numbers of one row, four side by side per thread where there are so many."""
    threads = 32 * num_warps
    side = max(min(4, len(values) // threads), 1)
    held: dict[int, tuple[float, int]] = {}
    for at, value in enumerate(values):
        thread = at // side % threads
        held[thread] = combined(held[thread], (value, at)) if thread in held else (value, at)
    lanes = [held[thread] for thread in range(len(held))]
    return shuffled([shuffled(lanes[at : at + 32]) for at in range(0, len(lanes), 32)])


@pytest.mark.adr("0232-D4")
@pytest.mark.parametrize("length", [2, 4, 32, 64, 256, 2048])
@pytest.mark.parametrize("num_warps", [1, 4])
def test_nan_wins_and_loses_as_the_lanes_of_a_gpu_combine_it(length: int, num_warps: int) -> None:
    x = RNG.permutation(length * 8).astype(np.float32).reshape(8, length)
    x[RNG.random(x.shape) < 0.2] = np.nan
    x[0], x[1, 0], x[2, -1] = np.nan, np.nan, np.nan
    index = np.broadcast_to(np.arange(length, dtype=np.int32), x.shape)
    tiles = tuple(Tile(i, (length,), as_dtype(a.dtype)) for i, a in enumerate((x, index)))
    dsts = tuple(Tile(9 + i, (), tile.dtype) for i, tile in enumerate(tiles))
    for name, sign in (("argmax", 1), ("argmin", -1)):
        command = Reduce(dsts, name, tiles, 0, UNKNOWN_LINE)
        _, where = build_reduction(command, num_warps)([x, index])
        expected = [of_threads((sign * row).tolist(), num_warps)[1] for row in x]
        assert where.tolist() == expected


@pytest.mark.adr("0232-D4")
def test_nan_to_the_right_wins_and_to_the_left_loses() -> None:
    x = np.array([[np.nan, np.inf], [np.inf, np.nan], [np.nan, np.nan]], np.float32)
    _, index = reduce("argmax", x, np.array([[0, 1]] * 3, np.int32), axis=0)
    assert index.tolist() == [1, 1, 1]


@pytest.mark.adr("0232-D4")
@pytest.mark.parametrize(("combine", "expected"), [("argmaxu", 1), ("argminu", 0)])
def test_unsigned_numbers_compare_as_such(combine: str, expected: int) -> None:
    x = np.array([[3, -1, 5]], np.int32)
    _, index = reduce(combine, x, np.arange(3, dtype=np.int32)[None], axis=0)
    assert index[0] == expected
