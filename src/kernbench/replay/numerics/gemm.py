"""``tt.dot`` of a batch of programs: float32 accumulation through BLAS, exact for integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from kernbench.commands import Gemm, Rounding
from kernbench.dtypes import Array
from kernbench.replay.numerics.conversions import narrow, widen

Multiply = Callable[[Array, Array], Array]

_DROPPED_BITS = 13
_KEPT = np.uint32(0xFFFFFFFF ^ ((1 << _DROPPED_BITS) - 1))
_BELOW_HALF = np.uint32((1 << (_DROPPED_BITS - 1)) - 1)


def round_to_tf32(x: Array) -> Array:
    """Return float32 numbers with 10 bits of mantissa, to nearest, ties to even.

    >>> float(round_to_tf32(np.float32([1 + 2**-11 + 2**-23]))[0]) - 1 == 2**-10
    True
    """
    bits = x.view(np.uint32)
    rounded = bits >> np.uint32(_DROPPED_BITS)
    rounded &= np.uint32(1)
    rounded += _BELOW_HALF
    rounded += bits
    rounded &= _KEPT
    return _with_nans(x, rounded.view(np.float32))


def truncate_to_tf32(x: Array) -> Array:
    """Return float32 numbers truncated to 10 bits of mantissa."""
    return _with_nans(x, (x.view(np.uint32) & _KEPT).view(np.float32))


def _with_nans(x: Array, rounded: Array) -> Array:
    # Without its lower bits a NaN may become an infinity, and a carry may clear its bits.
    undefined = np.isnan(x)
    if undefined.any():
        rounded[undefined] = np.nan
    return rounded


def _to_bfloat16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def multiply_rounded(a: Array, b: Array, rounding: Rounding, multiply: Multiply) -> Array:
    """Return the product of float32 arrays as an engine for narrower numbers computes it."""
    if rounding is Rounding.TF32:
        return multiply(round_to_tf32(a), round_to_tf32(b))
    if rounding is Rounding.TF32_TRUNCATED:
        return multiply(truncate_to_tf32(a), truncate_to_tf32(b))
    with np.errstate(invalid="ignore"):  # infinity has an infinite large part and no small one
        if rounding is Rounding.TF32X3:
            passes = _passes(_split(a, 2, round_to_tf32), _split(b, 2, round_to_tf32), multiply)
        else:
            parts = 2 if rounding is Rounding.BF16X3 else 3
            passes = _passes(
                _split(a, parts, _to_bfloat16), _split(b, parts, _to_bfloat16), multiply
            )
    return passes


def _split(x: Array, parts: int, narrow: Callable[[Array], Array]) -> list[Array]:
    """Return narrow numbers whose sum approximates ``x``, the largest first."""
    arrays = []
    for _ in range(parts):
        arrays.append(narrow(x))
        x = x - arrays[-1]
    return arrays


def _passes(a: list[Array], b: list[Array], multiply: Multiply) -> Array:
    """Return the sum of the products of parts, from the smallest to the largest.

    The sizes of two parts add up; products smaller than the smallest part are left out.
    """
    small: Any = None
    for size in range(len(a) - 1, 0, -1):
        for index in range(size + 1):
            product = multiply(a[index], b[size - index])
            small = product if small is None else small + product
    # If a large part is infinite, its small part is NaN; the product of the large ones is right.
    small[np.isnan(small)] = 0
    small += multiply(a[0], b[0])
    return np.asarray(small)


def build_gemm(command: Gemm) -> Callable[..., Array]:
    """Return the function from ``a``, ``b`` (and ``acc``) to ``a @ b + acc``.

    Floats accumulate in float32 (float64 in float64), one BLAS call per pair of tiles, and are
    rounded to the destination's type once. Integers are exact.
    """
    result = command.dst.dtype.numpy
    k = command.a.shape[-1]
    if result.kind in "iu":
        # Products of 8-bit integers sum exactly in float64 up to k = 2**39.
        def exact(a: Array, b: Array, acc: Array | None = None) -> Array:
            product = multiply(a.astype(np.float64), b.astype(np.float64), k).astype(np.int64)
            product = product.astype(result)
            return product if acc is None else product + acc

        return exact

    product_of = _product_of(command)

    def accumulated(a: Array, b: Array, acc: Array | None = None) -> Array:
        product = product_of(widen(a), widen(b))
        if acc is not None:
            if product.shape == np.broadcast_shapes(product.shape, acc.shape):
                product += widen(acc)
            else:
                product = product + widen(acc)
        return narrow(product, result)

    return accumulated


def build_gemm_into(command: Gemm) -> Callable[..., Any] | None:
    """Return the function that writes the product of one pair of tiles into ``out``, or None."""
    if command.dst.dtype.numpy != np.float32:
        return None

    m, k = command.a.shape[-2:]
    n = command.b.shape[-1]
    product_of = _product_of(command)
    is_plain = command.rounding is Rounding.NONE

    def into(a: Array, b: Array, *, out: Array) -> None:
        if is_plain and a.shape == (1, m, k) and b.shape == (1, k, n):
            np.matmul(widen(a)[0], widen(b)[0], out=out[0])
            # The operands may be those of all programs of a group.
            if len(out) > 1:
                out[1:] = out[0]
        else:
            out[...] = product_of(widen(a), widen(b))

    return into


def _product_of(command: Gemm) -> Callable[[Array, Array], Array]:
    """Return the function from two float arrays to their product."""
    plain = partial(multiply, k=command.a.shape[-1])
    if command.rounding is Rounding.NONE:
        return plain
    return partial(multiply_rounded, rounding=command.rounding, multiply=plain)


def multiply(a: Array, b: Array, k: int) -> Array:
    """Return ``a @ b`` over an inner axis of length ``k``.

    An axis may have length 1 if all its elements are equal; so may the result's.
    """
    if a.shape[-1] != k:
        a = np.broadcast_to(a, (*a.shape[:-1], k))
    if b.shape[-2] != k:
        b = np.broadcast_to(b, (*b.shape[:-2], k, b.shape[-1]))
    if a.ndim == 3 and len(b) == 1:
        if len(a) == 1:
            product: Array = np.matmul(a[0], b[0])
            return product[None]
        if a.flags.c_contiguous:
            # One right-hand side for all programs: their left sides form one tall matrix.
            product = np.matmul(a.reshape(-1, k), b[0])
            return product.reshape(len(a), a.shape[1], -1)
    return np.asarray(np.matmul(a, b))
