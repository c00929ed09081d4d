"""``arith.cmpi`` and ``arith.cmpf``: predicates by name, or by MLIR's number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Math
from kernbench.replay.numerics.conversions import as_unsigned, dtype_of

Array = npt.NDArray[Any]
Function = Callable[..., Array]

_SIGNED_COMPARE: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
}
_UNSIGNED_COMPARE: dict[str, Function] = {
    "ult": np.less,
    "ule": np.less_equal,
    "ugt": np.greater,
    "uge": np.greater_equal,
}
_INT_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


_FLOAT_COMPARE: dict[str, Function] = {
    "false": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    "oeq": np.equal,
    "ogt": np.greater,
    "oge": np.greater_equal,
    "olt": np.less,
    "ole": np.less_equal,
    "one": lambda a, b: (a < b) | (a > b),
    "ord": lambda a, b: ~_unordered(a, b),
    "ueq": lambda a, b: ~((a < b) | (a > b)),
    "ugt": lambda a, b: ~(a <= b),
    "uge": lambda a, b: ~(a < b),
    "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b),
    "une": np.not_equal,
    "uno": _unordered,
    "true": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_),
}


def _predicate(command: Math, names: tuple[str, ...]) -> str:
    attr = command.attrs["predicate"]
    return names[attr] if isinstance(attr, int) else str(attr)


def build_integer_comparison(command: Math) -> Function:
    """Return the comparison of two integer arrays."""
    name = _predicate(command, _INT_PREDICATES)
    if name in _SIGNED_COMPARE:
        if dtype_of(command.inputs[0]).bits == 1 and name not in ("eq", "ne"):
            # A true i1 is -1 as a signed number.
            return lambda a, b: _SIGNED_COMPARE[name](b, a)
        return _SIGNED_COMPARE[name]
    function = _UNSIGNED_COMPARE[name]
    return lambda a, b: function(as_unsigned(a), as_unsigned(b))


def build_float_comparison(command: Math) -> Function:
    """Return the comparison of two floating-point arrays; NaN compares as the predicate says."""
    return _FLOAT_COMPARE[_predicate(command, tuple(_FLOAT_COMPARE))]
