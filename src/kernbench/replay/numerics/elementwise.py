"""Vector operations: one numpy function per TTIR operation and element type.

float16, bfloat16 and float8 are computed in float32 and rounded after each operation, which is
what hardware does for one operation on these types. Integers are two's complement; TTIR's are
signless, so unsigned operations look at the same bits as unsigned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Math
from kernbench.dtypes import DType
from kernbench.errors import UnsupportedOpError, nearest
from kernbench.replay.numerics.comparisons import build_float_comparison, build_integer_comparison
from kernbench.replay.numerics.conversions import CONVERSIONS, is_special
from kernbench.replay.numerics.floats import FLOAT, TO_NARROW
from kernbench.replay.numerics.halves import convert_into, narrow, widen
from kernbench.replay.numerics.integers import UNSIGNED, add_int, ceil_div, div_c
from kernbench.replay.numerics.libdevice.functions import find_function
from kernbench.replay.numerics.operand_types import as_unsigned, is_narrow
from kernbench.replay.numerics.shapes import SHAPE_OPS

Array = npt.NDArray[Any]
Function = Callable[..., Array]


def build_function(command: Math) -> Function:
    """Return the function from the inputs' arrays ``[programs, *tile]`` to the result's.

    Raises:
        UnsupportedOpError: The operation is not known; names the nearest known ones.
    """
    op, dst = command.op, command.dst.dtype
    if op in SHAPE_OPS:
        return SHAPE_OPS[op](command)
    if op in FLOAT:
        return _rounded(TO_NARROW[op], dst) if is_narrow(dst) else FLOAT[op]
    if op in _PLAIN:
        return _PLAIN[op]
    if op in UNSIGNED:
        return _unsigned(UNSIGNED[op], dst)
    if op in _BUILT:
        return _BUILT[op](command)
    known = [*FLOAT, *_PLAIN, *UNSIGNED, *_BUILT, *SHAPE_OPS]
    raise UnsupportedOpError(f"{op} at {command.line} cannot run yet; {nearest(op, known)}")


def build_into(command: Math) -> Callable[..., Any] | None:
    """Return the function that writes the result into ``out``, or None if it needs a temporary.

    It takes the inputs' arrays and the keyword ``out``, which may share memory with them.
    """
    op, dst = command.op, command.dst.dtype
    if op in ("arith.extf", "arith.truncf", "tt.fp_to_fp") and command.inputs[0].shape:
        if op == "tt.fp_to_fp" and is_special(command):
            return None
        return _cast_into
    function = FLOAT.get(op) or _PLAIN.get(op)
    if is_narrow(dst) and op in FLOAT:
        wide = TO_NARROW[op]

        def rounded_into(*arrays: Array, out: Array) -> None:
            convert_into(wide(*map(widen, arrays)), out)

        return rounded_into
    return function if isinstance(function, np.ufunc) else None


def _cast_into(array: Array, *, out: Array) -> None:
    convert_into(array, out)


def _rounded(function: Function, dst: DType) -> Function:
    if not is_narrow(dst):
        return function
    result = dst.numpy

    def in_float32(*arrays: Array) -> Array:
        return narrow(function(*map(widen, arrays)), result)

    return in_float32


def _unsigned(function: Function, dst: DType) -> Function:
    result = dst.numpy

    def on_unsigned(*arrays: Array) -> Array:
        unsigned = function(*map(as_unsigned, arrays))
        return unsigned.view(result)

    return on_unsigned


def select(condition: Array, a: Array, b: Array) -> Array:
    """Return ``a`` where the condition holds, else ``b``; all of one element type.

    ``np.where`` branches per element, and a condition that is data is hard to predict: choosing by
    bits is up to ten times as fast on large tiles.
    """
    shape = np.broadcast_shapes(condition.shape, a.shape, b.shape)
    if math.prod(shape) < _BRANCHING:
        return np.where(condition, a, b)
    bits = np.dtype(f"i{a.dtype.itemsize}")
    chosen = np.negative(condition.view(np.int8)).astype(bits)
    other = b.view(bits)
    difference = a.view(bits) ^ other
    if chosen.shape == shape:
        chosen &= difference
    else:
        chosen = np.bitwise_and(difference, chosen)
    chosen = np.bitwise_xor(chosen, other)
    return np.asarray(chosen.view(a.dtype))


_BRANCHING = 2048


_PLAIN: dict[str, Function] = {
    "arith.negf": np.negative,
    "math.absf": np.absolute,
    "math.absi": np.absolute,
    "math.copysign": np.copysign,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.addi": add_int,
    "arith.subi": lambda a, b: a ^ b if a.dtype == np.bool_ else a - b,
    "arith.muli": np.multiply,
    "arith.divsi": div_c,
    "arith.remsi": np.fmod,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": ceil_div,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.select": select,
}


def _clamp(command: Math) -> Function:
    propagate = bool(command.attrs.get("propagate_nan", False))
    low, high = (np.maximum, np.minimum) if propagate else (np.fmax, np.fmin)
    return lambda x, a, b: high(low(x, a), b)


def _extern(command: Math) -> Function:
    """Look a libdevice symbol up; on narrow types it is computed in float32."""
    symbol, dst = str(command.attrs.get("symbol", "")), command.dst.dtype
    if not is_narrow(dst):
        return find_function(symbol, dst.numpy, str(command.line))
    return _rounded(find_function(symbol, np.dtype(np.float32), str(command.line)), dst)


_BUILT: dict[str, Callable[[Math], Function]] = {
    "arith.cmpi": build_integer_comparison,
    "arith.cmpf": build_float_comparison,
    "tt.clampf": _clamp,
    "tt.extern_elementwise": _extern,
    **CONVERSIONS,
}
