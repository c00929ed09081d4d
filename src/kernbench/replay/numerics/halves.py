"""Conversions between float32 and the narrow floating-point types, exact to the bit.

numpy converts float16 one element at a time (2 to 4 ns each). The same conversion in a few vector
operations on the bits is two to three times as fast, and most kernels use float16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FLOAT16 = np.dtype(np.float16)
FLOAT32 = np.dtype(np.float32)

_SMALL = 8192
"""The number of elements below which numpy's own conversion is faster."""
_BLOCK = 1 << 15
"""The number of elements whose temporaries stay in cache."""

_SIGN = np.uint32(0x8000)
_SHIFT = np.uint32(13)
_EXPONENT = np.uint32(0x7F800000)
# A half's bits read as a float are too small by the difference of the biases, 127 - 15.
_REBIAS = np.float32(2.0**112)
_INFINITE = np.float32(65536)
# Subtracts the bias from the exponent and adds just under half of the last bit that is kept.
_UNBIAS_AND_ROUND = np.uint32((0xFFF - (112 << 23)) & 0xFFFFFFFF)
_SMALLEST_NORMAL = np.float32(2.0**-14)
_ROUNDS_TO_INFINITE = np.float32(65520)


def widen(array: Array) -> Array:
    """Return the array in float32 (float64 stays): exact for every narrower type."""
    dtype = array.dtype
    if dtype == FLOAT32 or dtype.itemsize == 8:
        return array
    if dtype == FLOAT16 and array.size >= _SMALL:
        return _in_blocks(array, FLOAT32, _half_to_float)
    return array.astype(FLOAT32)


def narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return the array in ``dtype``, rounded to nearest, ties to even."""
    if array.dtype == dtype:
        return array
    if dtype == FLOAT16 and array.dtype == FLOAT32 and array.size >= _SMALL:
        return _in_blocks(array, FLOAT16, _float_to_half)
    return array.astype(dtype)


def convert_into(array: Array, out: Array) -> None:
    """Write the array into ``out``, converted to its type as :func:`narrow` does."""
    halves = out.dtype == FLOAT16 and array.dtype == FLOAT32 and array.size >= _SMALL
    if halves and array.shape == out.shape and not np.may_share_memory(array, out):
        _blocks_into(array, out, _float_to_half)
    else:
        np.copyto(out, array, casting="unsafe")


def _in_blocks(
    array: Array, dtype: np.dtype[Any], convert: Callable[[Array, Array], None]
) -> Array:
    # The same layout as the input: a transposed matrix stays one for BLAS.
    out: Array = np.empty_like(array, dtype=dtype)
    _blocks_into(array, out, convert)
    return out


def _blocks_into(array: Array, out: Array, convert: Callable[[Array, Array], None]) -> None:
    axis = int(np.argmax(np.abs(array.strides)))
    array, out = np.moveaxis(array, axis, 0), np.moveaxis(out, axis, 0)
    if len(array) and array.size // len(array) > _BLOCK:
        for part, part_out in zip(array, out, strict=True):
            _blocks_into(part, part_out, convert)
        return
    rows = max(_BLOCK // max(array.size // max(len(array), 1), 1), 1)
    for start in range(0, len(array), rows):
        convert(array[start : start + rows], out[start : start + rows])


def _half_to_float(half: Array, out: Array) -> None:
    bits = out.view(np.uint32)
    np.copyto(bits, half.view(np.uint16))
    sign = bits & _SIGN
    sign <<= np.uint32(16)
    bits &= np.uint32(0x7FFF)
    bits <<= _SHIFT
    out *= _REBIAS
    special = out >= _INFINITE
    if special.any():
        np.bitwise_or(bits, _EXPONENT, out=bits, where=special)
    bits |= sign


def _float_to_half(single: Array, out: Array) -> None:
    bits = single.view(np.uint32)
    rounded = bits >> _SHIFT
    rounded &= np.uint32(1)
    magnitude = np.abs(single)
    rounded += magnitude.view(np.uint32)
    rounded += _UNBIAS_AND_ROUND
    rounded >>= _SHIFT
    sign = bits >> np.uint32(16)
    sign &= _SIGN
    rounded |= sign
    np.copyto(out.view(np.uint16), rounded, casting="unsafe")
    # Subnormal results, infinities and NaN are left to numpy.
    plain = (magnitude >= _SMALLEST_NORMAL) & (magnitude < _ROUNDS_TO_INFINITE)
    if not plain.all():
        np.copyto(out, single, where=~plain, casting="unsafe")
