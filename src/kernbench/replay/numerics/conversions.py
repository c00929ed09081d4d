"""Conversions and bitcasts between element types, and the element types of operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kernbench.commands import MaskTile, Math, Operand
from kernbench.dtypes import DType, bool_
from kernbench.replay.numerics.halves import convert_into, narrow, widen
from kernbench.replay.numerics.to_integers import to_integers

Array = npt.NDArray[Any]
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
    return _cast_into if command.inputs[0].shape else None


def into_rounded(command: Math) -> Callable[..., Any] | None:
    """Build ``tt.fp_to_fp`` that writes into ``out``; None if it does more than round."""
    return None if is_special(command) else into_floats(command)


def _cast_into(array: Array, *, out: Array) -> None:
    convert_into(array, out)
