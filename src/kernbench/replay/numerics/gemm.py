"""``tt.dot`` of a batch of programs: float32 accumulation through BLAS, exact for integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Gemm, Rounding
from kernbench.replay.numerics.halves import narrow, widen
from kernbench.replay.numerics.tf32 import multiply_rounded

Array = npt.NDArray[Any]


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
