"""Functions of each element that torch has and that are no operators: abs, pow, tanh, ..."""

from __future__ import annotations

from typing import Any

from kernbench.dtypes import DType
from kernbench.errors import UsageError
from kernbench.ops.base import scalar_functions as fn
from kernbench.ops.base.promotion import is_number, result_dtype
from kernbench.ops.elementwise import Operand, fraction, result_of, run_elementwise
from kernbench.runtime_api import Tensor


def abs(x: Tensor) -> Tensor:
    """Return the magnitude of each element."""
    _refuse_bool("abs", x.dtype)
    return run_elementwise("abs", fn.abs, (x,), result_of((x,), x.dtype), x.dtype)


def square(x: Tensor) -> Tensor:
    """Return the square of each element."""
    return pow(x, 2)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of each element; of integers it is float32."""
    return fraction("tanh", fn.tanh, x)


def sigmoid(x: Tensor) -> Tensor:
    """Return ``1 / (1 + exp(-x))`` of each element; of integers it is float32."""
    return fraction("sigmoid", fn.sigmoid, x)


def rsqrt(x: Tensor) -> Tensor:
    """Return one over the square root of each element; of integers it is float32."""
    return fraction("rsqrt", fn.rsqrt, x)


def reciprocal(x: Tensor) -> Tensor:
    """Return one over each element; of integers it is float32."""
    return fraction("reciprocal", fn.reciprocal, x)


def sin(x: Tensor) -> Tensor:
    """Return the sine of each element; of integers it is float32."""
    return fraction("sin", fn.sin, x)


def cos(x: Tensor) -> Tensor:
    """Return the cosine of each element; of integers it is float32."""
    return fraction("cos", fn.cos, x)


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Return the elements, raised to ``min`` and lowered to ``max``: numbers or tensors."""
    if min is None and max is None:
        raise UsageError("clamp: at least one of min and max must be given")
    if min is None or max is None:
        function, bound = (fn.minimum, max) if min is None else (fn.maximum, min)
        dtype = result_dtype(x, bound)
        return run_elementwise("clamp", function, (x, bound), result_of((x, bound), dtype), dtype)
    dtype = result_dtype(x, min, max)
    out = result_of((x, min, max), dtype)
    return run_elementwise("clamp", fn.clamp, (x, min, max), out, dtype)


def pow(base: Operand, exponent: Operand) -> Tensor:
    """Return ``base ** exponent``, one of them perhaps a number.

    Integers to an integer are integers, modulo two to the power of their bits, as in torch.

    Raises:
        UsageError: Integers are raised to a negative number, or both are bools.
    """
    dtype = result_dtype(base, exponent)
    _refuse_bool("pow", dtype)
    out = result_of((base, exponent), dtype)
    if not dtype.is_floating_point:
        return _integer_pow(base, exponent, out, dtype)
    if is_number(exponent):
        function = _SIMPLE_POWERS.get(float(exponent))
        if function is not None:
            return run_elementwise("pow", function, (base,), out, dtype)
    return run_elementwise("pow", fn.pow, (base, exponent), out, dtype)


_SIMPLE_POWERS: dict[float, Any] = {
    2.0: fn.square,
    3.0: fn.cube,
    0.5: fn.sqrt,
    1.0: fn.identity,
    -1.0: fn.reciprocal,
    -0.5: fn.rsqrt,
}


def _integer_pow(base: Operand, exponent: Operand, out: Tensor, dtype: DType) -> Tensor:
    bits = 8 * dtype.itemsize
    if is_number(exponent):
        if exponent < 0:
            raise UsageError(
                f"pow: integers to the power of {exponent} are no integers; convert them with "
                "`.float()`"
            )
        bits = int(exponent).bit_length()
    return run_elementwise("pow", fn.integer_pow, (base, exponent, bits), out, dtype)


def _refuse_bool(what: str, dtype: DType) -> None:
    if dtype.name == "bool":
        raise UsageError(f"{what} is not defined for bools; convert them with `.to(torch.int32)`")
