"""The dtype of an operation's result, and the one that it computes in."""

from __future__ import annotations

import numbers
from typing import Any, TypeGuard

import numpy as np
import triton.language as tl

from kernbench.dtypes import DType, as_dtype, bool_, float32, int64
from kernbench.errors import UsageError
from kernbench.runtime_api import Tensor

_FLOAT = 2
"""The highest kind of dtype; below are integers (1) and bool (0)."""

_TRITON = {
    "float32": tl.float32,
    "float64": tl.float64,
    "bool": tl.int1,
    **{
        f"{kind}{bits}": getattr(tl, f"{kind}{bits}")
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
}


def result_dtype(*operands: Any) -> DType:
    """Return the dtype of a result, as torch promotes.

    A Python number decides only when no tensor is of its kind: ``int32 + 1.5`` is float32, and
    ``float16 * 1.5`` stays float16. float16 with bfloat16 gives float32.
    """
    dtypes = [operand.dtype for operand in operands if not is_number(operand)]
    result = _promote(dtypes) if dtypes else None
    for operand in operands:
        if is_number(operand):
            own = _dtype_of_number(operand)
            if result is None or _kind(result) < _kind(own):
                result = own
    assert result is not None
    return result


def compute_dtype(dtype: DType) -> Any:
    """Return Triton's type to compute in: half precision is computed in float32, as torch does."""
    if dtype.is_floating_point and dtype.itemsize < 4:
        return tl.float32
    return _TRITON[dtype.name]


def float_result(*operands: Any) -> DType:
    """Return the dtype of a result that is a fraction: float32 where the operands are integers."""
    dtype = result_dtype(*operands)
    return dtype if dtype.is_floating_point else float32


def is_number(operand: Any) -> bool:
    """Return whether an operand is a Python or numpy number; else it is a tensor.

    Raises:
        UsageError: It is neither.
    """
    if type(operand) is Tensor:
        return False
    if isinstance(operand, (numbers.Real, np.bool_)):
        return True
    if hasattr(operand, "data_ptr"):
        return False
    raise UsageError(
        f"an operand must be a tensor or a number, but got {type(operand).__name__}; make it a "
        "tensor with torch.tensor(...)"
    )


def is_tensor(operand: Any) -> TypeGuard[Tensor]:
    """Return whether an operand is a tensor; else it is a number.

    Raises:
        UsageError: It is neither.
    """
    return not is_number(operand)


def as_number(value: Any) -> float | int:
    """Return a number as Triton accepts it."""
    return float(value) if _kind(_dtype_of_number(value)) == _FLOAT else int(value)


def require_float(what: str, tensor: Any) -> None:
    """Refuse a tensor that is not floating point.

    Raises:
        UsageError: It is not.
    """
    if not tensor.dtype.is_floating_point:
        raise UsageError(
            f"{what} needs a floating-point tensor, but got {tensor.dtype}; convert it with "
            "`.to(torch.float32)`"
        )


def _promote(dtypes: list[DType]) -> DType:
    highest = max(_kind(dtype) for dtype in dtypes)
    same = {dtype.name: dtype for dtype in dtypes if _kind(dtype) == highest}
    if len(same) == 1:
        return next(iter(same.values()))
    if highest == _FLOAT:
        widest = max(dtype.itemsize for dtype in same.values())
        largest = [dtype for dtype in same.values() if dtype.itemsize == widest]
        # Two different formats of one width: neither holds the other.
        return largest[0] if len(largest) == 1 else float32
    return as_dtype(np.result_type(*(dtype.numpy for dtype in same.values())))


def _kind(dtype: DType) -> int:
    return _FLOAT if dtype.is_floating_point else 0 if dtype.name == "bool" else 1


def _dtype_of_number(value: Any) -> DType:
    if isinstance(value, (bool, np.bool_)):
        return bool_
    return int64 if isinstance(value, numbers.Integral) else float32
