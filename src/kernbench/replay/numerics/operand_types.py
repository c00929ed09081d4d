"""What an operand's element type means to numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import MaskTile, Operand
from kernbench.dtypes import DType, bool_

Array = npt.NDArray[Any]


def dtype_of(operand: Operand) -> DType:
    """Return the element type of an operand."""
    return bool_ if isinstance(operand, MaskTile) else operand.dtype


def is_narrow(dtype: DType) -> bool:
    """Return whether arithmetic on the type is done in float32."""
    return dtype.is_floating_point and dtype.itemsize < 4


def as_unsigned(array: Array) -> Array:
    """Return the same bits as unsigned integers."""
    return array if array.dtype == np.bool_ else array.view(f"u{array.dtype.itemsize}")
