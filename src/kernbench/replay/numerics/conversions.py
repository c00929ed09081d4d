"""Conversions and bitcasts between element types, and the element types of operands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from kernbench.commands import MaskTile, Math, Operand
from kernbench.dtypes import Array, DType, bool_

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


_LEAST, _MOST = np.minimum.reduce, np.maximum.reduce


def to_integers(wide: Array, result: np.dtype[Any], *, is_signed: bool) -> Array:
    """Return floats rounded towards zero, as numpy integers of the type ``result``.

    ``result`` may be signed for unsigned numbers: only the bits matter.
    """
    array = _in_range(wide, result, is_signed)
    return _clamped(wide, result, is_signed) if array is None else array


def _in_range(wide: Array, result: np.dtype[Any], is_signed: bool) -> Array | None:
    """Return floats as integers if all of them are in range, otherwise None.

    The processor's invalid flag shows whether one is out of range.
    """
    is_long = result.itemsize + (not is_signed) > 4
    try:
        with np.errstate(invalid="raise"):
            array: Array = wide.astype(np.int64 if is_long else np.int32)
    except FloatingPointError:
        return None
    if array.dtype == result and is_signed:
        return array
    least, most = _bounds(result, is_signed)
    if array.size and (_LEAST(array, None) < least or _MOST(array, None) > most):
        return None
    return array.astype(result)


def _clamped(wide: Array, result: np.dtype[Any], is_signed: bool) -> Array:
    limits = _limits(result, is_signed)
    # As a float, the largest integer rounds up to a power of two, which does not fit.
    above, below, missing = wide >= float(limits.max), wide <= float(limits.min), np.isnan(wide)
    inside = np.where(above | below | missing, wide.dtype.type(0), wide)
    array: Array = inside.astype(limits.dtype)
    array[above], array[below] = limits.max, limits.min
    # Source: PTX ISA, cvt: NaN becomes 0; with float64 or 64 bits, only the highest bit is set.
    if wide.dtype == np.float64 or limits.bits == 64:
        array[missing] = limits.min if is_signed else 1 << (limits.bits - 1)
    return array.astype(result)


def out_of_range(array: Array, result: np.dtype[Any], *, is_signed: bool) -> Array | None:
    """Return which floats, rounded towards zero, an integer type cannot hold; None if none."""
    wide = array.astype(np.float64)
    limits = np.iinfo(f"{'i' if is_signed else 'u'}{result.itemsize}")
    # NaN is in no range.
    inside = (wide > float(limits.min) - 1) & (wide < float(limits.max) + 1)
    # Where float64 cannot distinguish the smallest integer from the one below it.
    bad: Array = ~(inside | (wide == float(limits.min)))
    return bad if bad.any() else None


@functools.cache
def _bounds(result: np.dtype[Any], is_signed: bool) -> tuple[int, int]:
    limits = _limits(result, is_signed)
    return int(limits.min), int(limits.max)


def _limits(result: np.dtype[Any], is_signed: bool) -> np.iinfo[Any]:
    return np.iinfo(f"{'i' if is_signed else 'u'}{max(result.itemsize, 2)}")


Function = Callable[..., Array]


def dtype_of(operand: Operand) -> DType:
    """Return the element type of an operand."""
    return bool_ if isinstance(operand, MaskTile) else operand.dtype


def is_narrow(dtype: DType) -> bool:
    """Return whether arithmetic on the type is done in float32."""
    return dtype.is_floating_point and dtype.itemsize < 4


def as_unsigned(array: Array) -> Array:
    """Return the same bits as unsigned integers."""
    return array if array.dtype == np.bool_ else array.view(f"u{array.dtype.itemsize}")


def convert(command: Math) -> Function:
    """Build the conversion to the result's type, rounded to nearest."""
    result = command.dst.dtype.numpy
    if is_narrow(command.dst.dtype):
        return lambda x: narrow(x, result)
    if is_narrow(dtype_of(command.inputs[0])) and result == np.float32:
        return widen
    return lambda x: x.astype(result)


def between_floats(command: Math) -> Function:
    """Build ``tt.fp_to_fp``: with a rounding mode, and 8-bit formats saturate."""
    if not is_special(command):
        return convert(command)
    dtype = command.dst.dtype.numpy
    saturates = dtype.itemsize == 1
    towards_zero = command.attrs.get("rounding") == "rtz"
    info = ml_dtypes.finfo(dtype) if saturates else None  # type: ignore[no-untyped-call]
    largest = np.float32(np.inf if info is None else info.max)

    def converted(x: Array) -> Array:
        wide = widen(x)
        if saturates:
            # Source: PTX ISA, cvt.satfinite, the only way to these formats. NaN stays NaN.
            wide = np.clip(wide, -largest, largest)
        rounded = narrow(wide, dtype)
        return _stepped_back(rounded, wide) if towards_zero else rounded

    return converted


def is_special(command: Math) -> bool:
    """Return whether a ``tt.fp_to_fp`` does more than round to nearest."""
    narrows = command.dst.dtype.itemsize < dtype_of(command.inputs[0]).itemsize
    return command.dst.dtype.itemsize == 1 or (narrows and command.attrs.get("rounding") == "rtz")


def _stepped_back(rounded: Array, exact: Array) -> Array:
    """Return ``rounded`` with every magnitude that was rounded up moved one step towards zero."""
    too_large = np.abs(rounded.astype(exact.dtype)) > np.abs(exact)
    # Sign and magnitude: one less is one step towards zero, from infinity too.
    bits = rounded.view(f"u{rounded.dtype.itemsize}")
    return np.asarray((bits - too_large.astype(bits.dtype)).view(rounded.dtype))


def from_unsigned(command: Math) -> Function:
    """Build the conversion of unsigned integers, wider ones or floats."""
    result = command.dst.dtype.numpy
    return lambda x: as_unsigned(x).astype(result)


def sign_extend(command: Math) -> Function:
    """Build the conversion of signed integers to wider ones; a true i1 is -1."""
    result = command.dst.dtype.numpy
    if dtype_of(command.inputs[0]).bits == 1:
        return lambda x: -x.astype(result)
    return lambda x: x.astype(result)


def truncate_int(command: Math) -> Function:
    """Build the conversion of integers to narrower ones, whose upper bits are dropped."""
    result = command.dst.dtype.numpy
    if result == np.bool_:
        return lambda x: (x & 1).astype(np.bool_)
    return lambda x: x.astype(result)


def float_to_signed(command: Math) -> Function:
    """Build the conversion of floats to signed integers, towards zero."""
    result = command.dst.dtype.numpy
    return lambda x: to_integers(widen(x), result, is_signed=True)


def float_to_unsigned(command: Math) -> Function:
    """Build the conversion of floats to unsigned integers, towards zero."""
    result = command.dst.dtype.numpy
    return lambda x: to_integers(widen(x), result, is_signed=False)


def bitcast(command: Math) -> Function:
    """Build the view of the same bits as the result's type."""
    result = command.dst.dtype.numpy
    return lambda x: x.view(result)


def into_floats(command: Math) -> Callable[..., Any] | None:
    """Build a conversion between floats that writes into ``out``; None for a scalar."""
    return (lambda array, *, out: convert_into(array, out)) if command.inputs[0].shape else None


def into_rounded(command: Math) -> Callable[..., Any] | None:
    """Build ``tt.fp_to_fp`` that writes into ``out``; None if it does more than round."""
    return None if is_special(command) else into_floats(command)
