"""``fp8e4b15``, which MLIR does not have: Triton keeps it in bytes and asks how to convert it.

A sign, four bits of exponent with the bias of float16, three of mantissa; every code is a number.
GPUs convert it with inline assembly; this is the same in Triton's own operations.
"""

from __future__ import annotations

from typing import Any

from triton.language import core

_SIGN, _MAGNITUDE = 0x80, 0x7F
_LARGEST = 0x3F80
"""The bits of 1.875, the largest number of the format, as float16."""


@core.builtin  # type: ignore[untyped-decorator]  # Triton ships no types
def convert_custom_types(
    arg: Any, dst_ty: Any, fp_downcast_rounding: Any = None, _semantic: Any = None
) -> Any:
    """Return ``arg`` in another type, one of the two being ``fp8e4b15``."""
    if arg.type.scalar.is_fp8e4b15():
        wide = _to_float16(arg, _semantic)
        return wide if dst_ty.scalar.is_fp16() else _cast(wide, dst_ty.scalar, _semantic)
    if not arg.type.scalar.is_fp16():
        # Towards zero first, so that the second rounding decides.
        narrow = core.cast(arg, core.float16, fp_downcast_rounding="rtz", _semantic=_semantic)
        return _from_float16(narrow, _semantic)
    return _from_float16(arg, _semantic)


def _to_float16(arg: Any, semantic: Any) -> Any:
    bits = _cast(_bits(arg, core.uint8, semantic), core.uint16, semantic)
    sign = _shift_left(_and(bits, _SIGN, semantic), 8, semantic)
    magnitude = _shift_left(_and(bits, _MAGNITUDE, semantic), 7, semantic)
    return _bits(semantic.or_(sign, magnitude), core.float16, semantic)


def _from_float16(arg: Any, semantic: Any) -> Any:
    bits = _bits(arg, core.uint16, semantic)
    magnitude = _and(bits, 0x7FFF, semantic)
    largest = semantic.full(arg.shape, _LARGEST, core.uint16)
    inside = semantic.less_than(magnitude, largest)
    magnitude = semantic.where(inside, magnitude, largest)
    # Half of the last bit that stays, ties away from zero.
    magnitude = semantic.add(magnitude, _constant(0x40, semantic), False)
    magnitude = semantic.lshr(magnitude, _constant(7, semantic))
    sign = semantic.lshr(_and(bits, 0x8000, semantic), _constant(8, semantic))
    byte = _cast(semantic.or_(sign, magnitude), core.uint8, semantic)
    return _bits(byte, core.float8e4b15, semantic)


def _constant(number: int, semantic: Any) -> Any:
    return semantic.scalar_constant(number, core.uint16)


def _and(bits: Any, mask: int, semantic: Any) -> Any:
    return semantic.and_(bits, _constant(mask, semantic))


def _shift_left(bits: Any, count: int, semantic: Any) -> Any:
    return semantic.shl(bits, _constant(count, semantic))


def _cast(value: Any, dtype: Any, semantic: Any) -> Any:
    return core.cast(value, dtype, _semantic=semantic)


def _bits(value: Any, dtype: Any, semantic: Any) -> Any:
    return core.cast(value, dtype, bitcast=True, _semantic=semantic)
