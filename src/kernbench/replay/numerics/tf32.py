"""Products of float32 operands on an engine for narrower numbers.

Source: ``input_precision`` of ``tl.dot``; for several passes Henry, Tang and Heinecke, "Leveraging
the bfloat16 artificial intelligence datatype for higher-precision computations", ARITH 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kernbench.commands import Rounding

Array = npt.NDArray[Any]
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
