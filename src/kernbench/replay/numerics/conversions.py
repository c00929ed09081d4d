"""Conversions between element types, and the same bits seen as another type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kernbench.commands import Math
from kernbench.replay.numerics.halves import narrow, widen
from kernbench.replay.numerics.operand_types import as_unsigned, dtype_of, is_narrow
from kernbench.replay.numerics.to_integers import to_integers

Array = npt.NDArray[Any]
Function = Callable[..., Array]


def _convert(command: Math) -> Function:
    result = command.dst.dtype.numpy
    if is_narrow(command.dst.dtype):
        return lambda x: narrow(x, result)
    if is_narrow(dtype_of(command.inputs[0])) and result == np.float32:
        return widen
    return lambda x: x.astype(result)


def _between_floats(command: Math) -> Function:
    """``tt.fp_to_fp``: with a rounding mode, and 8-bit formats saturate."""
    if not is_special(command):
        return _convert(command)
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
    """Return the numbers whose magnitude was rounded up one step nearer to zero."""
    too_large = np.abs(rounded.astype(exact.dtype)) > np.abs(exact)
    # Sign and magnitude: one less is one step towards zero, from infinity too.
    bits = rounded.view(f"u{rounded.dtype.itemsize}")
    return np.asarray((bits - too_large.astype(bits.dtype)).view(rounded.dtype))


def _from_unsigned(command: Math) -> Function:
    result = command.dst.dtype.numpy
    return lambda x: as_unsigned(x).astype(result)


def _sign_extend(command: Math) -> Function:
    result = command.dst.dtype.numpy
    if dtype_of(command.inputs[0]).bits == 1:
        return lambda x: -x.astype(result)
    return lambda x: x.astype(result)


def _truncate_int(command: Math) -> Function:
    result = command.dst.dtype.numpy
    if result == np.bool_:
        return lambda x: (x & 1).astype(np.bool_)
    return lambda x: x.astype(result)


def _float_to_int(command: Math) -> Function:
    result = command.dst.dtype.numpy
    is_signed = command.op == "arith.fptosi"
    return lambda x: to_integers(widen(x), result, is_signed=is_signed)


def _bitcast(command: Math) -> Function:
    result = command.dst.dtype.numpy
    return lambda x: x.view(result)


CONVERSIONS: dict[str, Callable[[Math], Function]] = {
    "arith.extf": _convert,
    "arith.truncf": _convert,
    "tt.fp_to_fp": _between_floats,
    "arith.sitofp": _convert,
    "arith.uitofp": _from_unsigned,
    "arith.fptosi": _float_to_int,
    "arith.fptoui": _float_to_int,
    "arith.extsi": _sign_extend,
    "arith.extui": _from_unsigned,
    "arith.trunci": _truncate_int,
    "arith.index_cast": _truncate_int,
    "arith.index_castui": _from_unsigned,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
}
