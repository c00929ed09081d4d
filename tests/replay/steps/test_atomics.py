"""Atomics against one element at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kernbench.errors import OutOfBoundsError, UnsupportedOpError
from kernbench.replay.steps.atomics import KINDS, change
from kernbench.triton_backend import activate
from tests.replay.executing import ExecutingLauncher
from tests.tiers import examples

INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "max": max,
    "min": min,
    "umax": lambda a, b: max(a % 2**32, b % 2**32),
    "umin": lambda a, b: min(a % 2**32, b % 2**32),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exch": lambda a, b: b,
}


def wrapped(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


@pytest.fixture
def device() -> Iterator[ExecutingLauncher]:
    launcher = ExecutingLauncher()
    with activate(launcher):
        yield launcher


INT32 = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2)


@pytest.mark.adr("0031-D8")
@given(
    kind=st.sampled_from(sorted(INTEGERS)),
    memory=hnp.arrays(np.int32, 5, elements=INT32),
    lanes=st.lists(st.tuples(st.integers(0, 4), INT32), max_size=20),
    reads=st.booleans(),
)
def test_integer_atomics_take_effect_one_after_another(
    kind: str, memory: np.ndarray, lanes: list[tuple[int, int]], reads: bool
) -> None:
    expected, found_before = memory.tolist(), []
    for place, value in lanes:
        found_before.append(expected[place])
        expected[place] = wrapped(INTEGERS[kind](expected[place], value))
    places = np.array([place for place, _ in lanes], dtype=np.int64)
    values = np.array([value for _, value in lanes], dtype=np.int32)
    result = change(kind, memory, places, values, None, reads)
    assert memory.tolist() == expected
    if reads:
        assert result is not None
        assert result.tolist() == found_before


@given(
    dtype=st.sampled_from([np.float16, ml_dtypes.bfloat16, np.float32, np.float64]),
    lanes=st.lists(st.tuples(st.integers(0, 2), st.floats(-4, 4, width=16)), max_size=12),
    reads=st.booleans(),
)
def test_a_float_sum_rounds_after_every_lane(
    dtype: Any, lanes: list[tuple[int, float]], reads: bool
) -> None:
    memory = np.ones(3, dtype)
    expected, found_before = [np.ones((), dtype)[()] for _ in range(3)], []
    for place, value in lanes:
        found_before.append(expected[place])
        expected[place] = (expected[place] + np.array(value, dtype)[()]).astype(dtype)
    places = np.array([place for place, _ in lanes], dtype=np.int64)
    result = change(
        "fadd", memory, places, np.array([v for _, v in lanes]).astype(dtype), None, reads
    )
    np.testing.assert_array_equal(memory, np.array(expected, dtype))
    if result is not None:
        np.testing.assert_array_equal(result, np.array(found_before, dtype))


@given(
    memory=hnp.arrays(np.int32, 3, elements=st.integers(-1, 2)),
    lanes=st.lists(
        st.tuples(st.integers(0, 2), st.integers(-1, 2), st.integers(-1, 2)), max_size=12
    ),
    same=st.booleans(),
)
def test_compare_and_swap_lets_the_first_lane_win(
    memory: np.ndarray, lanes: list[tuple[int, int, int]], same: bool
) -> None:
    if same:
        lanes = [(place, *lanes[0][1:]) for place, _, _ in lanes]
    expected, found_before = memory.tolist(), []
    for place, compare, value in lanes:
        found_before.append(expected[place])
        if expected[place] == compare:
            expected[place] = value
    columns = np.array(lanes, dtype=np.int32).reshape(-1, 3)
    result = change("cas", memory, columns[:, 0].astype(np.int64), columns[:, 2], columns[:, 1])
    assert memory.tolist() == expected
    assert result is not None
    assert result.tolist() == found_before


def test_every_kind_of_triton_is_known() -> None:
    assert {*INTEGERS, "fadd", "cas", "load"} == KINDS


@triton.jit
def histogram(x, bins, old, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.atomic_add(bins + tl.load(x + at, at < n, other=0), 1, mask=at < n)
    tl.store(old + at, value, at < n)


@examples(10)
@given(values=st.lists(st.integers(0, 6), min_size=1, max_size=100))
def test_a_histogram_hands_out_places_in_program_order(values: list[int]) -> None:
    launcher = ExecutingLauncher()
    with activate(launcher):
        x = np.array(values, dtype=np.int32)
        bins = launcher.tensor(np.zeros(7, np.int32))
        old = launcher.tensor(np.zeros(len(x), np.int32))
        histogram[(7,)](launcher.tensor(x), bins, old, len(x), B=16)
    np.testing.assert_array_equal(bins.numpy(), np.bincount(x, minlength=7))
    np.testing.assert_array_equal(old.numpy(), [values[:i].count(v) for i, v in enumerate(values)])


@triton.jit
def split_k(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.program_id(2) * BK, K, BK * tl.num_programs(2)):
        inner = k + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * K + inner[None, :], rows[:, None] < M, other=0)
        y = tl.load(b + inner[:, None] * N + cols[None, :], cols[None, :] < N, other=0)
        sums += tl.dot(x, y)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.atomic_add(c + rows[:, None] * N + cols[None, :], sums, mask, sem="relaxed")


def test_split_k_sums_partial_products(device: ExecutingLauncher) -> None:
    rng = np.random.default_rng(2)
    a = rng.integers(-3, 4, (100, 256)).astype(np.float16)
    b = rng.integers(-3, 4, (256, 70)).astype(np.float16)
    c = device.tensor(np.ones((100, 70), np.float32))
    args = (device.tensor(a), device.tensor(b), c, 100, 70, 256)
    split_k[(4, 3, 4)](*args, BM=32, BN=32, BK=32)
    np.testing.assert_array_equal(c.numpy(), 1 + a.astype(np.float32) @ b.astype(np.float32))


@triton.jit
def extremes(x, low, high, largest, B: tl.constexpr):
    value = tl.load(x + tl.program_id(0) * B + tl.arange(0, B))
    zeros = tl.zeros((B,), tl.int32)
    tl.atomic_min(low + zeros, value)
    tl.atomic_max(high + zeros, value)
    tl.atomic_max(largest, tl.max(value).to(tl.uint32, bitcast=True))


def test_float_extremes_and_unsigned_ones(device: ExecutingLauncher) -> None:
    x = np.random.default_rng(3).standard_normal(128).astype(np.float32)
    low, high = device.tensor(np.zeros(1, np.float32)), device.tensor(np.zeros(1, np.float32))
    largest = device.tensor(np.zeros(1, np.uint32))
    extremes[(4,)](device.tensor(x), low, high, largest, B=32)
    assert low.numpy()[0] == x.min()
    assert high.numpy()[0] == x.max()
    assert largest.numpy()[0] == x.reshape(4, 32).max(axis=1).view(np.uint32).max()


@triton.jit
def swap(x, before, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(before + at, tl.atomic_xchg(x + at, tl.load(x + B - 1 - at)))


def test_what_an_atomic_changes_was_loaded_before(device: ExecutingLauncher) -> None:
    x = device.tensor(np.arange(16, dtype=np.float32))
    before = device.tensor(np.zeros(16, np.float32))
    swap[(1,)](x, before, B=16)
    np.testing.assert_array_equal(x.numpy(), np.arange(16)[::-1])
    np.testing.assert_array_equal(before.numpy(), np.arange(16))


@triton.jit
def add_gathered(index, x, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.atomic_add(x + tl.load(index + at), 1.0, mask=at < n)


def test_an_atomic_outside_of_its_tensor_names_itself_and_the_line(
    device: ExecutingLauncher,
) -> None:
    index = device.tensor(np.full(16, 99, np.int32))
    x = device.tensor(np.zeros(16, np.float32))
    with pytest.raises(OutOfBoundsError, match=r"atomic_rmw at test_atomics.py:\d+ updates 4"):
        add_gathered[(1,)](index, x, 16, B=16)
    add_gathered[(1,)](index, x, 0, B=16)


def test_an_unknown_kind_is_refused() -> None:
    from kernbench.commands import UNKNOWN_LINE, Access, Predicate, Separable
    from kernbench.dtypes import int32
    from kernbench.replay.steps.atomics import AtomicStep
    from kernbench.replay.steps.sites import AccessSite, Chunks

    access = Access(0, Separable(()), int32)
    chunks = Chunks((0, 1), np.zeros(1, np.int64), (1, 1, 1))
    site = AccessSite(
        access, Predicate(()), UNKNOWN_LINE, chunks, is_store=True, atomic="atomic_rmw"
    )
    with pytest.raises(UnsupportedOpError, match="did you mean add"):
        AtomicStep(site, "addd", 0, None, None)
