"""Element types: one table for torch's names, Triton's, MLIR's and numpy's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kernbench.errors import UnknownNameError, nearest

Array = npt.NDArray[Any]
"""Of any type."""


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. ``str()`` gives torch's spelling, which is also what Triton reads.

    There is one object for each: types are compared and hashed for every operation.
    """

    name: str
    """torch's name, e.g. ``float16``."""
    mlir: str
    """MLIR's name, e.g. ``f16``."""
    triton: str
    """Triton's name in a signature, e.g. ``fp16``."""
    numpy: np.dtype[Any]
    aliases: tuple[str, ...] = ()
    """Further names that are taken."""
    tolerances: tuple[float, float] = (0.0, 0.0)
    """Relative and absolute, of ``assert_close``. Source: torch.testing.assert_close."""

    @cached_property
    def itemsize(self) -> int:
        """Bytes per element in memory."""
        return self.numpy.itemsize

    @cached_property
    def is_floating_point(self) -> bool:
        return self.name.startswith(("float", "bfloat"))

    @property
    def bits(self) -> int:
        """Significant bits: 1 for bool, ``8 * itemsize`` otherwise."""
        return 1 if self.name == "bool" else 8 * self.itemsize

    def __str__(self) -> str:
        return f"torch.{self.name}"

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


def _dtype(
    name: str,
    mlir: str,
    triton: str,
    np_type: Any,
    *aliases: str,
    tolerances: tuple[float, float] = (0.0, 0.0),
) -> DType:
    return DType(name, mlir, triton, np.dtype(np_type), aliases, tolerances)


class TorchNames:
    """All element types by torch's names, for what stands for the module ``torch``.

    A row here is all that a type needs, unless numpy has no arithmetic for it: the functions of
    ``replay/numerics/conversions.py`` convert what is narrower than float32.
    """

    float16 = half = _dtype("float16", "f16", "fp16", np.float16, tolerances=(1e-3, 1e-5))
    bfloat16 = _dtype("bfloat16", "bf16", "bf16", ml_dtypes.bfloat16, tolerances=(1.6e-2, 1e-5))
    float32 = float = _dtype("float32", "f32", "fp32", np.float32, tolerances=(1.3e-6, 1e-5))
    float64 = double = _dtype("float64", "f64", "fp64", np.float64, tolerances=(1e-7, 1e-7))
    float8_e4m3fn = _dtype(
        *("float8_e4m3fn", "f8E4M3FN", "fp8e4nv", ml_dtypes.float8_e4m3fn, "fp8e4m3"),
        tolerances=(1.25e-1, 1e-5),
    )
    float8_e5m2 = _dtype(
        *("float8_e5m2", "f8E5M2", "fp8e5", ml_dtypes.float8_e5m2, "fp8e5m2"),
        tolerances=(2.5e-1, 1e-5),
    )
    float8_e4m3fnuz = _dtype(
        *("float8_e4m3fnuz", "f8E4M3FNUZ", "fp8e4b8", ml_dtypes.float8_e4m3fnuz),
        tolerances=(1.25e-1, 1e-5),
    )
    float8_e5m2fnuz = _dtype(
        *("float8_e5m2fnuz", "f8E5M2FNUZ", "fp8e5b16", ml_dtypes.float8_e5m2fnuz),
        tolerances=(2.5e-1, 1e-5),
    )
    bool = _dtype("bool", "i1", "i1", np.bool_)
    int8 = _dtype("int8", "i8", "i8", np.int8)
    int16 = short = _dtype("int16", "i16", "i16", np.int16)
    int32 = int = _dtype("int32", "i32", "i32", np.int32)
    int64 = long = _dtype("int64", "i64", "i64", np.int64)
    uint8 = _dtype("uint8", "u8", "u8", np.uint8)
    uint16 = _dtype("uint16", "u16", "u16", np.uint16)
    uint32 = _dtype("uint32", "u32", "u32", np.uint32)
    uint64 = _dtype("uint64", "u64", "u64", np.uint64)


# Those that code of ours names.
float16, bfloat16 = TorchNames.float16, TorchNames.bfloat16
float32, float64 = TorchNames.float32, TorchNames.float64
float8_e4m3fn, float8_e5m2 = TorchNames.float8_e4m3fn, TorchNames.float8_e5m2
float8_e4m3fnuz, float8_e5m2fnuz = TorchNames.float8_e4m3fnuz, TorchNames.float8_e5m2fnuz
bool_ = TorchNames.bool
int8, int16, int32, int64 = TorchNames.int8, TorchNames.int16, TorchNames.int32, TorchNames.int64
uint8, uint16 = TorchNames.uint8, TorchNames.uint16
uint32, uint64 = TorchNames.uint32, TorchNames.uint64

_BY_NAME: dict[str, DType] = {
    name: dtype for name, dtype in vars(TorchNames).items() if isinstance(dtype, DType)
}

ALL: tuple[DType, ...] = tuple(dict.fromkeys(_BY_NAME.values()))

for _each in ALL:
    for _name in (_each.name, _each.mlir, _each.triton, *_each.aliases):
        _BY_NAME[_name] = _each

_BY_NUMPY: dict[np.dtype[Any], DType] = {dtype.numpy: dtype for dtype in ALL}

_BY_MLIR: dict[str, DType] = {dtype.mlir: dtype for dtype in ALL}


def as_dtype(value: Any) -> DType:
    """Return the element type that ``given`` names.

    Takes a :class:`DType`, a name (``"f16"``, ``"float16"``, ``"fp16"``), a numpy dtype, or any
    object whose text ends in such a name (a real ``torch.float16``).

    >>> as_dtype("bf16")
    torch.bfloat16
    """
    if isinstance(value, DType):
        return value
    if not isinstance(value, str):
        try:
            dtype = _BY_NUMPY.get(np.dtype(value))
        except TypeError:
            dtype = None
        if dtype is not None:
            return dtype
    name = str(value).removeprefix("torch.")
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise UnknownNameError(f"unknown dtype {value!r}: {nearest(name, _BY_NAME)}")


def from_mlir(name: str) -> DType:
    """Return the element type of an MLIR scalar type such as ``bf16`` or ``i32``."""
    try:
        return _BY_MLIR[name]
    except KeyError:
        raise UnknownNameError(f"unknown MLIR type {name!r}: {nearest(name, _BY_MLIR)}") from None
