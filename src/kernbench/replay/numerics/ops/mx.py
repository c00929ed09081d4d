"""Block-scaled ("mx") operands: small elements, with a scale per block along one axis.

Source: OCP Microscaling Formats (MX) Specification 1.0; and Triton's lowering of ``tt.dot_scaled``
for machines without an engine for it: elements and scales become bfloat16 or float16 numbers, which
are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from kernbench.commands import Math
from kernbench.dtypes import Array
from kernbench.replay.numerics.conversions import narrow, widen
from kernbench.replay.numerics.ops.registry import Numeric

_NOT_A_NUMBER = 0xFF
_E2M1 = np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32
)
_ELEMENTS: dict[str, np.dtype[Any]] = {
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


def _build_decode(command: Math) -> Callable[..., Array]:
    """Return the function from elements (and scales) to numbers, for ``tt.mx_decode``."""
    attrs = command.attrs
    element, result = str(attrs["elements"]), command.dst.dtype.numpy
    # One more axis: that of programs.
    axis, packed = 1 + int(attrs["axis"]), 1 + int(attrs["packed_axis"])
    length = command.dst.shape[axis - 1]
    shape = command.inputs[0].shape
    fast = bool(attrs.get("fast", False))

    def decoded(x: Array, scale: Array | None = None) -> Array:
        x = np.broadcast_to(x, (len(x), *shape))
        numbers = _numbers(x, element, packed)
        if scale is None:
            return narrow(numbers, result)
        scale = np.broadcast_to(scale, (len(scale), *command.inputs[1].shape))
        if axis != x.ndim - 1:
            scale = scale.swapaxes(-1, -2)
        factors = np.repeat(_factors(scale, result), length // scale.shape[axis], axis)
        # Both are exact in float32, and so is the product: it is rounded once.
        value = narrow(numbers * factors, result)
        if scale.dtype == np.int8 and not fast:
            bad = scale.view(np.uint8) == _NOT_A_NUMBER
            undefined = np.repeat(bad, length // scale.shape[axis], axis)
            value = np.where(undefined, result.type(np.nan), value)
        return value

    return decoded


def _numbers(x: Array, element: str, packed: int) -> Array:
    """Return the elements as float32."""
    if element != "e2m1":
        dtype = _ELEMENTS[element]
        return widen(x if x.dtype == dtype else x.view(dtype))
    codes = x.view(np.uint8)
    # The low half of a byte comes first.
    both = np.stack([_E2M1[codes & 15], _E2M1[codes >> 4]], axis=packed + 1)
    return both.reshape(*x.shape[:packed], 2 * x.shape[packed], *x.shape[packed + 1 :])


def _factors(scale: Array, result: np.dtype[Any]) -> Array:
    """Return the scales as float32 numbers that ``result`` can hold; a byte is an exponent."""
    if scale.dtype != np.int8:
        return widen(narrow(widen(scale), result))
    bits = scale.view(np.uint8).astype(np.uint32) << np.uint32(23)
    return widen(narrow(bits.view(np.float32), result))


TABLE: dict[str, Numeric] = {"tt.mx_decode": Numeric(build=_build_decode, moves=True)}
