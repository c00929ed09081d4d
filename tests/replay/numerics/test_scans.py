"""Scans, gathers, histograms and functions of elements, against numpy, several programs each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from kernbench.triton_backend import activate
from tests.replay.executing import ExecutingLauncher
from tests.tiers import daily

RNG = np.random.default_rng(11)


@pytest.fixture
def device() -> Iterator[ExecutingLauncher]:
    launcher = ExecutingLauncher()
    with activate(launcher):
        yield launcher


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit
def _largest(a, b):
    return tl.maximum(a, b)


@triton.jit
def _linear(a, x, b, y):
    """Compose two steps of ``h -> a h + x``."""
    return a * b, x * b + y


@triton.jit
def scan_kernel(x, out, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr,
                LARGEST: tl.constexpr):  # fmt: skip
    at = tl.program_id(0) * M * N + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    if LARGEST:
        scanned = tl.associative_scan(tl.load(x + at), AXIS, _largest, reverse=REVERSE)
    else:
        scanned = tl.associative_scan(tl.load(x + at), AXIS, _sum, reverse=REVERSE)
    tl.store(out + at, scanned)


@triton.jit
def recurrence_kernel(a, x, out, N: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    _, h = tl.associative_scan((tl.load(a + at), tl.load(x + at)), 0, _linear, reverse=REVERSE)
    tl.store(out + at, h)


@pytest.mark.parametrize(
    "dtype", daily(np.int8, np.float16, of=(np.int8, np.int32, np.float32, np.float16, np.uint16))
)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("combine", ["sum", "largest"])
def test_a_scan_keeps_what_is_combined_so_far(
    device: ExecutingLauncher, dtype: Any, reverse: bool, axis: int, combine: str
) -> None:
    x = RNG.integers(0, 9, (3, 8, 16)).astype(dtype)
    out = device.tensor(np.zeros_like(x))
    scan_kernel[(3,)](device.tensor(x), out, 8, 16, axis, reverse, combine == "largest")
    flipped = np.flip(x, 1 + axis) if reverse else x
    numpy = np.add if combine == "sum" else np.maximum
    expected = numpy.accumulate(flipped, axis=1 + axis, dtype=dtype)
    np.testing.assert_array_equal(out.numpy(), np.flip(expected, 1 + axis) if reverse else expected)


@pytest.mark.adr("0042-D3")
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_pairs_keeps_the_order_of_its_operands(
    device: ExecutingLauncher, reverse: bool
) -> None:
    a, x = RNG.integers(-2, 3, (2, 4, 16)).astype(np.int64)
    out = device.tensor(np.zeros_like(x))
    recurrence_kernel[(4,)](device.tensor(a), device.tensor(x), out, 16, reverse)
    h = np.zeros(4, np.int64)
    for step in range(16)[:: -1 if reverse else 1]:
        h = a[:, step] * h + x[:, step]
        np.testing.assert_array_equal(out.numpy()[:, step], h)


@triton.jit
def argmax_so_far_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    _, where = tl.associative_scan((tl.load(x + at), at), 0, _first_largest)
    tl.store(out + at, where)


@triton.jit
def _first_largest(a, i, b, j):
    keep = (a > b) | ((a == b) & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)


def test_a_scan_that_looks_like_argmax_gives_the_index_at_every_element(
    device: ExecutingLauncher,
) -> None:
    x = RNG.integers(0, 20, 32).astype(np.int32)
    out = device.tensor(np.zeros(32, np.int32))
    argmax_so_far_kernel[(1,)](device.tensor(x), out, 32)
    assert out.numpy().tolist() == [int(np.argmax(x[: i + 1])) for i in range(32)]


@triton.jit
def gather_kernel(x, index, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    picked = tl.arange(0, K)[:, None]
    source = tl.load(x + tl.program_id(0) * M * N + rows * N + columns)
    where = tl.load(index + tl.program_id(0) * K * N + picked * N + columns)
    tl.store(out + tl.program_id(0) * K * N + picked * N + columns, tl.gather(source, where, 0))


def test_a_gather_takes_along_an_axis(device: ExecutingLauncher) -> None:
    x = RNG.standard_normal((3, 16, 8)).astype(np.float32)
    index = RNG.integers(0, 16, (3, 32, 8)).astype(np.int32)
    out = device.tensor(np.zeros((3, 32, 8), np.float32))
    gather_kernel[(3,)](device.tensor(x), device.tensor(index), out, 16, 8, 32)
    np.testing.assert_array_equal(out.numpy(), np.take_along_axis(x, index, 1))


@triton.jit
def histogram_kernel(x, out, n, N: tl.constexpr, BINS: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + tl.program_id(0) * N + at)
    counts = tl.histogram(value, BINS, mask=at < n)
    tl.store(out + tl.program_id(0) * BINS + tl.arange(0, BINS), counts)


def test_a_histogram_counts_what_its_mask_lets_through(device: ExecutingLauncher) -> None:
    x = RNG.integers(0, 8, (3, 64)).astype(np.int32)
    out = device.tensor(np.zeros((3, 8), np.int32))
    histogram_kernel[(3,)](device.tensor(x), out, 50, 64, 8)
    expected = [np.bincount(row[:50], minlength=8) for row in x]
    np.testing.assert_array_equal(out.numpy(), expected)


@triton.jit
def _sign_of_difference(a, b):
    if a < b:
        return -1
    elif a == b:
        return 0
    else:
        return 1


@triton.jit
def _quotients(a, b, c, d):
    return a // c, b // d, a % c, b % d


@triton.jit
def compare_kernel(x, y, out, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + at, tl.map_elementwise(_sign_of_difference, tl.load(x + at), tl.load(y + at)))


@triton.jit
def quotient_kernel(x, y, q, r, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    quotient, rest = tl.map_elementwise(_quotients, tl.load(x + at), tl.load(y + at), pack=2)
    tl.store(q + at, quotient)
    tl.store(r + at, rest)


needs_map = pytest.mark.skipif(
    not hasattr(tl, "map_elementwise"), reason="this Triton has no map_elementwise"
)


@needs_map
def test_a_function_that_branches_is_computed_per_element(device: ExecutingLauncher) -> None:
    x, y = RNG.integers(0, 4, (2, 3, 32)).astype(np.int32)
    out = device.tensor(np.zeros((3, 32), np.int32))
    compare_kernel[(3,)](device.tensor(x), device.tensor(y), out, 32)
    np.testing.assert_array_equal(out.numpy(), np.sign(x - y))


@needs_map
def test_a_function_of_packed_elements_gets_neighbours(device: ExecutingLauncher) -> None:
    x = RNG.integers(0, 100, (3, 32)).astype(np.int32)
    y = RNG.integers(1, 9, (3, 32)).astype(np.int32)
    q, r = (device.tensor(np.zeros((3, 32), np.int32)) for _ in range(2))
    quotient_kernel[(3,)](device.tensor(x), device.tensor(y), q, r, 32)
    np.testing.assert_array_equal(q.numpy(), x // y)
    np.testing.assert_array_equal(r.numpy(), x % y)


@triton.jit
def scaled_dot_kernel(a, a_scale, b, b_scale, out, M: tl.constexpr, N: tl.constexpr,
                      K: tl.constexpr, A: tl.constexpr, B: tl.constexpr):  # fmt: skip
    PA: tl.constexpr = K // 2 if A == "e2m1" else K
    PB: tl.constexpr = K // 2 if B == "e2m1" else K
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.program_id(0) * K
    left = tl.load(a + tl.program_id(0) * M * PA + m[:, None] * PA + tl.arange(0, PA)[None, :])
    right = tl.load(b + tl.program_id(0) * PB * N + tl.arange(0, PB)[:, None] * N + n[None, :])
    s = tl.arange(0, K // 32)[None, :]
    left_scale = tl.load(a_scale + k // 32 * M + m[:, None] * (K // 32) + s)
    right_scale = tl.load(b_scale + k // 32 * N + n[:, None] * (K // 32) + s)
    c = tl.dot_scaled(left, left_scale, A, right, right_scale, B)
    tl.store(out + tl.program_id(0) * M * N + m[:, None] * N + n[None, :], c)


_FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


@pytest.mark.adr("0042-D4")
@pytest.mark.parametrize(("left", "right"), [("e2m1", "e4m3"), ("e5m2", "e2m1"), ("e4m3", "e4m3")])
def test_a_block_scaled_product_is_that_of_the_decoded_numbers(
    device: ExecutingLauncher, left: str, right: str
) -> None:
    def operand(shape: tuple[int, ...], element: str, axis: int) -> tuple[Any, np.ndarray]:
        """Return the stored form of small random numbers, and the numbers."""
        numbers = RNG.choice([0.5, 1, 1.5, 2, 3, 4, 6, -1, -3], shape).astype(np.float32)
        if element != "e2m1":
            return numbers.astype(_FLOAT8[element]), numbers
        # float4_e2m1fn keeps one code in the low half of a byte.
        codes = np.moveaxis(numbers.astype(ml_dtypes.float4_e2m1fn).view(np.uint8), axis, -1)
        packed = codes[..., ::2] | codes[..., 1::2] << 4
        return np.ascontiguousarray(np.moveaxis(packed, -1, axis)), numbers

    a, a_numbers = operand((2, 16, 64), left, 2)
    b, b_numbers = operand((2, 64, 32), right, 1)
    a_scale = RNG.integers(124, 131, (2, 16, 2)).astype(np.uint8)
    b_scale = RNG.integers(124, 131, (2, 32, 2)).astype(np.uint8)
    out = device.tensor(np.zeros((2, 16, 32), np.float32))
    arguments = [device.tensor(array) for array in (a, a_scale, b, b_scale)]
    scaled_dot_kernel[(2,)](*arguments, out, 16, 32, 64, left, right)
    factors_a = np.repeat(2.0 ** (a_scale - 127.0), 32, 2)
    factors_b = np.repeat(2.0 ** (b_scale - 127.0), 32, 2).swapaxes(1, 2)
    np.testing.assert_allclose(
        out.numpy(), (a_numbers * factors_a) @ (b_numbers * factors_b), rtol=1e-6
    )


@pytest.mark.adr("0042-D4")
def test_a_scale_that_is_no_number_makes_its_block_none(device: ExecutingLauncher) -> None:
    ones = np.ones((1, 16, 32), ml_dtypes.float8_e5m2)
    a_scale = np.full((1, 16, 1), 127, np.uint8)
    a_scale[0, 3] = 255
    b_scale = np.full((1, 16, 1), 127, np.uint8)
    out = device.tensor(np.zeros((1, 16, 16), np.float32))
    right = np.ones((1, 32, 16), ml_dtypes.float8_e5m2)
    arguments = [device.tensor(array) for array in (ones, a_scale, right, b_scale)]
    scaled_dot_kernel[(1,)](*arguments, out, 16, 16, 32, "e5m2", "e5m2")
    assert np.isnan(out.numpy()[0, 3]).all()
    assert (np.delete(out.numpy()[0], 3, 0) == 32).all()


@triton.jit
def argmax_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out, tl.argmax(tl.load(x + at), 0))


def test_argmax_of_unsigned_numbers_sees_their_top_bit(device: ExecutingLauncher) -> None:
    x = np.array([1, 2**31 + 5, 7, 2**31 + 5], np.uint32)
    out = device.tensor(np.zeros(1, np.int32))
    argmax_kernel[(1,)](device.tensor(x), out, 4)
    assert out.numpy()[0] == 1
