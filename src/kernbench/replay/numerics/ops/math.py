"""The ``math`` dialect on arrays; narrow floats are computed in float32 and rounded."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kernbench.dtypes import Array
from kernbench.replay.numerics.exact import fma, fma_to_odd
from kernbench.replay.numerics.ops.registry import Function, Numeric, on_floats, plain


def _per_element(function: Callable[..., float]) -> Function:
    """Return a function that applies one of Python floats to every element; for rare operations."""
    vectorised = np.frompyfunc(function, function.__code__.co_argcount, 1)

    def apply(*arrays: Array) -> Array:
        result: Array = np.asarray(vectorised(*arrays))
        return result.astype(np.result_type(*arrays))

    return apply


# Rational approximation of erf on the interval where float32 does not round to one, odd in x.
# Source: XLA's and Eigen's float32 erf; at most 2e-7 from the exact value (held by a test).
_ERF_LIMIT = 3.7439211627767994
_ERF_TOP = (
    0.00022905065861350646,
    0.0034082910107109506,
    0.050955695062380861,
    0.18520832239976145,
    1.128379143519084,
)
_ERF_BOTTOM = (
    -1.1791602954361697e-7,
    0.000023547966471313185,
    0.0010179625278914885,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067538,
    1.0,
)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    total: Array = x * x.dtype.type(coefficients[0])
    for coefficient in coefficients[1:-1]:
        total += x.dtype.type(coefficient)
        total *= x
    total += x.dtype.type(coefficients[-1])
    return total


def _erf(x: Array) -> Array:
    if x.dtype == np.float64:
        return _per_element(lambda v: math.erf(v))(x)
    x = np.clip(x, np.float32(-_ERF_LIMIT), np.float32(_ERF_LIMIT))
    square = x * x
    top = _polynomial(square, _ERF_TOP)
    top *= x
    top /= _polynomial(square, _ERF_BOTTOM)
    return np.clip(top, np.float32(-1), np.float32(1))


FUNCTIONS: dict[str, Function] = {
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: np.asarray(np.reciprocal(np.sqrt(x))),
    "math.cbrt": np.cbrt,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.log10": np.log10,
    "math.log1p": np.log1p,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.tan": np.tan,
    "math.asin": np.arcsin,
    "math.acos": np.arccos,
    "math.atan": np.arctan,
    "math.sinh": np.sinh,
    "math.cosh": np.cosh,
    "math.tanh": np.tanh,
    "math.asinh": np.arcsinh,
    "math.acosh": np.arccosh,
    "math.atanh": np.arctanh,
    "math.atan2": np.arctan2,
    "math.powf": np.power,
    "math.fpowi": lambda x, exponent: np.asarray(np.power(x, exponent.astype(x.dtype))),
    "math.erf": _erf,
    "math.erfc": _per_element(lambda v: math.erfc(v)),
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.trunc": np.trunc,
    "math.round": lambda x: np.asarray(np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)),
    "math.roundeven": np.rint,
    "math.fma": fma,
}
"""The functions of float32 and float64."""

TABLE: dict[str, Numeric] = {
    **{name: on_floats(function) for name, function in FUNCTIONS.items()},
    # Rounded again to the narrow type: to odd first, otherwise it would be rounded twice.
    "math.fma": on_floats(fma, to_narrow=fma_to_odd),
    "math.absf": plain(np.absolute),
    "math.absi": plain(np.absolute),
    "math.copysign": plain(np.copysign),
}
