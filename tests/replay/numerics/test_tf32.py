"""float32 products on engines for narrower numbers, against roundings done in float64."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from kernbench import RuntimeContext
from kernbench.commands import Gemm
from kernbench.errors import UsageError
from kernbench.hardware import load_machine
from kernbench.kernel_ir import parse_module
from kernbench.replay.numerics.gemm import round_to_tf32, truncate_to_tf32
from kernbench.runtime_api import KernelEngine
from kernbench.triton_backend.binary import build_binary

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(45)
M, N, K = 48, 32, 80


def to_ten_bits(x: Array, snap: Any = np.rint) -> Array:
    """Round in float64, by arithmetic on mantissa and exponent."""
    with np.errstate(invalid="ignore"):  # a signaling NaN becomes a quiet one
        wide = x.astype(np.float64)
    mantissa, exponent = np.frexp(wide)
    # Below 2**-126 float32 has fewer bits: the last of ten is that of 2**-126.
    lost = np.maximum(-125 - exponent, 0)
    scale = np.ldexp(1.0, 11 - lost)
    with np.errstate(over="ignore"):
        return (np.ldexp(snap(mantissa * scale) / scale, exponent)).astype(np.float32)


def to_bfloat16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_ten_bits_of_mantissa_are_kept(bits: list[int]) -> None:
    x = np.array(bits, np.uint32).view(np.float32)
    np.testing.assert_array_equal(round_to_tf32(x), to_ten_bits(x))
    np.testing.assert_array_equal(truncate_to_tf32(x), to_ten_bits(x, np.trunc))


def test_special_numbers_stay_what_they_are() -> None:
    x = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000], np.uint32)
    for convert in (round_to_tf32, truncate_to_tf32):
        np.testing.assert_array_equal(convert(x.view(np.float32)), [np.nan] * 3 + [np.inf, -np.inf])


@triton.jit
def multiply_add(a, b, acc, PRECISION: tl.constexpr):
    if PRECISION == "unsaid":
        acc = tl.dot(a, b, acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, fade, N, K, PRECISION: tl.constexpr, FADES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :])
        b = tl.load(b_ptr + k[:, None] * N + n[None, :])
        acc = multiply_add(a, b, acc, PRECISION)
        if FADES:
            # No single product any more.
            acc *= fade
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


@triton.jit
def counted_product_kernel(
    a_ptr, b_ptr, c_ptr, count_ptr, N, K, PRECISION: tl.constexpr, BLOCK: tl.constexpr
):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for step in range(tl.load(count_ptr)):
        k = step * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :])
        b = tl.load(b_ptr + k[:, None] * N + n[None, :])
        acc = multiply_add(a, b, acc, PRECISION)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


def product(a: Array, b: Array, precision: str, *, fades: bool = False, **options: Any) -> Array:
    with RuntimeContext(**options) as torch:
        on_device = [torch.from_numpy(item) for item in (a, b)]
        c = torch.zeros(M, N)
        product_kernel[(M // 16, N // 16)](
            *on_device, c, 1.0, N, K, PRECISION=precision, FADES=fades, BLOCK=16
        )
        result: Array = c.numpy()
    return result


def counted_product(a: Array, b: Array, precision: str, **options: Any) -> Array:
    with RuntimeContext(**options) as torch:
        on_device = [torch.from_numpy(item) for item in (a, b)]
        c, count = torch.zeros(M, N), torch.tensor([K // 16], dtype="i32")
        counted_product_kernel[(M // 16, N // 16)](
            *on_device, c, count, N, K, PRECISION=precision, BLOCK=16
        )
        result: Array = c.numpy()
    return result


def matrices() -> tuple[Array, Array]:
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N)))
    return a, b


def exactly(a: Array, b: Array) -> Array:
    return a.astype(np.float64) @ b.astype(np.float64)


def worst(actual: Array, expected: Array) -> float:
    return float(np.abs(actual - expected).max())


SUMMED = 2e-6 * np.sqrt(K)
"""What float32 sums of K products of normal numbers differ by, at most, from exact ones."""


@pytest.mark.adr("0042-D7")
@pytest.mark.parametrize("how", ["composite", "tile by tile", "on data"])
@pytest.mark.parametrize("precision", ["unsaid", "tf32"])
def test_tf32_rounds_the_operands_on_every_path(how: str, precision: str) -> None:
    a, b = matrices()
    if how == "on data":
        actual = counted_product(a, b, precision)
    else:
        actual = product(a, b, precision, fades=how == "tile by tile")
    assert worst(actual, exactly(to_ten_bits(a), to_ten_bits(b))) < SUMMED
    assert worst(actual, exactly(a, b)) > 10 * SUMMED


@pytest.mark.adr("0042-D7")
def test_a_kernel_that_says_ieee_gets_float32() -> None:
    a, b = matrices()
    assert worst(product(a, b, "ieee"), exactly(a, b)) < SUMMED


@pytest.mark.adr("0042-D8")
@pytest.mark.parametrize("how", [product, counted_product])
def test_a_run_chooses_how_tf32_is_computed(how: Any) -> None:
    a, b = matrices()
    assert worst(how(a, b, "tf32", tf32="ieee"), exactly(a, b)) < SUMMED
    cut = [to_ten_bits(item, np.trunc) for item in (a, b)]
    assert worst(how(a, b, "tf32", tf32="truncate"), exactly(*cut)) < SUMMED
    # Several passes round to nearest in any case; in float32 they are one.
    assert worst(how(a, b, "tf32x3", tf32="truncate"), exactly(a, b)) < SUMMED
    assert (how(a, b, "bf16x3", tf32="ieee") == how(a, b, "ieee")).all()


@pytest.mark.parametrize("given", ["fast", None, 1])
def test_another_way_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"tf32 must be 'round' or 'truncate' or 'ieee', but got"):
        RuntimeContext(tf32=given)


@pytest.mark.adr("0042-D9")
def test_a_machine_without_the_engine_computes_in_float32() -> None:
    a, b = matrices()
    for precision in ("tf32", "tf32x3", "bf16x3"):
        assert (product(a, b, precision, machine="v100") == product(a, b, "ieee")).all()
    # AMD's CDNA 2 has an engine for bfloat16 and none for tf32.
    assert (product(a, b, "tf32", machine="mi210") == product(a, b, "ieee")).all()
    assert worst(product(a, b, "bf16x3", machine="mi210"), product(a, b, "ieee")) > 0


@pytest.mark.adr("0042-D9")
def test_what_is_computed_in_float32_takes_its_time() -> None:
    sip = load_machine("v100", 1).sip
    assert {sip.float32_passes(name) for name in ("tf32", "tf32x3", "bf16x6")} == {("float32", 1)}
    assert load_machine("a100-sxm-80g", 1).sip.float32_passes("tf32x3") == ("tf32", 3)


def parts_of(x: Array, count: int, narrow: Any) -> list[Array]:
    parts: list[Array] = []
    for _ in range(count):
        parts.append(narrow(x))
        x = x - parts[-1]
    return parts


@pytest.mark.adr("0042-D10")
@pytest.mark.parametrize(
    ("precision", "count", "narrow"),
    [("tf32x3", 2, to_ten_bits), ("bf16x3", 2, to_bfloat16), ("bf16x6", 3, to_bfloat16)],
)
def test_several_passes_multiply_the_parts_of_the_operands(
    precision: str, count: int, narrow: Any
) -> None:
    a, b = matrices()
    pairs = itertools.product(
        enumerate(parts_of(a, count, narrow)), enumerate(parts_of(b, count, narrow))
    )
    expected = sum((exactly(x, y) for (i, x), (j, y) in pairs if i + j < count), np.zeros((M, N)))
    assert worst(product(a, b, precision), expected) < SUMMED


@pytest.mark.adr("0042-D10")
@pytest.mark.parametrize("precision", ["tf32x3", "bf16x3", "bf16x6"])
def test_an_infinite_factor_stays_infinite_in_several_passes(precision: str) -> None:
    a, b = np.ones((M, K), np.float32), np.ones((K, N), np.float32)
    a[1, 3], b[5, 2] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(product(a, b, precision), a @ b)


@pytest.mark.adr("0042-D7")
def test_other_types_have_no_such_rounding() -> None:
    engine = KernelEngine(load_machine("ahbm", 1))
    for dtype, expected in (("f32", "tf32"), ("f16", "none"), ("f64", "none")):
        text = f"""module {{
          tt.func public @k(%p: !tt.ptr<f32>) {{
            %a = arith.constant dense<1.0> : tensor<16x16x{dtype}>
            %0 = tt.dot %a, %a, %a, inputPrecision = tf32 : tensor<16x16x{dtype}> * tensor<16x16x{dtype}> -> tensor<16x16x{dtype}>
            tt.return
          }}
        }}"""  # noqa: E501
        assert parse_module(text).kernel.name == "k"
        trace = engine.evaluate(build_binary(text, "k", 4, 1, ()), (1, 1, 1), {})
        (gemm,) = (command for command in trace.commands() if isinstance(command, Gemm))
        assert gemm.rounding == expected


@triton.jit
def float8_product_kernel(a_ptr, b_ptr, c_ptr, IMPRECISE: tl.constexpr):
    m, k, n = tl.arange(0, 16), tl.arange(0, 64), tl.arange(0, 16)
    a = tl.load(a_ptr + m[:, None] * 64 + k[None, :])
    b = tl.load(b_ptr + k[:, None] * 16 + n[None, :])
    c = tl.dot(a, b, max_num_imprecise_acc=IMPRECISE)
    tl.store(c_ptr + m[:, None] * 16 + n[None, :], c)


@pytest.mark.adr("0042-D12")
@pytest.mark.parametrize("imprecise", [None, 0, 32, 64])
def test_sums_of_float8_products_are_float32(imprecise: int | None) -> None:
    a, b = (
        RNG.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((16, 64), (64, 16))
    )
    # One large product that swallows the small ones in anything narrower.
    a[:, 0] = b[0] = 448
    with RuntimeContext() as torch:
        c = torch.zeros(16, 16)
        on_device = [torch.from_numpy(item) for item in (a, b)]
        float8_product_kernel[(1,)](*on_device, c, IMPRECISE=imprecise)
        np.testing.assert_allclose(c.numpy(), exactly(a, b), rtol=1e-6)
