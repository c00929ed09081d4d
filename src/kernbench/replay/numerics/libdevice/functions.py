"""Functions of CUDA's math library by symbol, such as ``__nv_tanhf``, on numpy arrays.

A symbol is a stem, with a suffix ``f`` for float32. Arguments and results have the types of the
symbol: float32 or float64, int32 or int64 (numpy's, so unsigned values come as signed bits).
Source: NVIDIA, "Libdevice User's Guide", also for differences from C's math library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from kernbench.dtypes import Array
from kernbench.errors import UnsupportedOpError, nearest
from kernbench.replay.numerics.conversions import to_integers
from kernbench.replay.numerics.exact import OPERATIONS, in_direction, reciprocal_square_root
from kernbench.replay.numerics.integers import mul_high
from kernbench.replay.numerics.libdevice.bessel import first_kind, modified_first_kind, second_kind
from kernbench.replay.numerics.ops.math import FUNCTIONS
from kernbench.replay.numerics.ops.registry import Function

_NORMAL = NormalDist()


def find_function(symbol: str, result: np.dtype[Any], where: str) -> Function:
    """Return the function that computes a symbol; its result has the element type ``result``.

    Raises:
        UnsupportedOpError: No such function is known; ``where`` is the line that calls it.
    """
    stem = symbol.removeprefix("__nv_")
    if _SAME_BITS.fullmatch(stem):
        return lambda x: x.view(result)
    for name in (stem, stem.removesuffix("f"), stem.removesuffix("ll"), stem.removesuffix("d")):
        function = _function(name)
        if function is not None:
            return _of_type(function, result)
    raise UnsupportedOpError(
        f"tt.extern_elementwise {symbol!r} at {where} cannot run yet; "
        f"{nearest(stem, [*_BY_STEM, *(op.partition('.')[2] for op in FUNCTIONS)])}"
    )


# Operations of float32 and float64 by their letters, with the rounding direction.
_DIRECTED = re.compile(rf"(?:[fd]({'|'.join(OPERATIONS)})|fmaf?)_(r[nzud])")


def _function(name: str) -> Function | None:
    known = _BY_STEM.get(name) or FUNCTIONS.get(f"math.{name}")
    if known is not None:
        return known
    converted = _CONVERSION.fullmatch(name)
    if converted is not None:
        source, target, mode = converted.groups()
        if target in _INTEGERS:
            return lambda x: _to_integer(_ROUND[mode](x), _INTEGERS[target])
        wanted = _FLOATS[target]
        return lambda x: _to_float(x.view(_INTEGERS.get(source, x.dtype)), wanted, mode)
    directed = _DIRECTED.fullmatch(name)
    if directed is not None:
        return in_direction(directed[1] or "fma", directed[2])
    return None


def _of_type(function: Function, result: np.dtype[Any]) -> Function:
    def typed(*arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            answer = np.asarray(function(*arrays))
        if answer.dtype == result:
            return answer
        return answer.astype(result)

    return typed


# -- floating point ---------------------------------------------------------------------------


def _each(function: Callable[..., float]) -> Function:
    """Return a function that applies one of Python floats to every element; for rare functions."""

    def guarded(*values: float) -> float:
        try:
            return function(*values)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    vectorised = np.frompyfunc(guarded, function.__code__.co_argcount, 1)

    def apply(*arrays: Array) -> Array:
        return np.asarray(vectorised(*arrays)).astype(np.result_type(*arrays))

    return apply


def _normal_quantile(p: float) -> float:
    if p in (0.0, 1.0):
        return math.inf if p else -math.inf
    return _NORMAL.inv_cdf(p)


def _erf_inverse(x: float) -> float:
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    return _normal_quantile((x + 1) / 2) / math.sqrt(2)


def _erfc_scaled(x: float) -> float:
    """``exp(x*x) * erfc(x)``, whose factors overflow and underflow for large x."""
    if x < 10:
        return math.exp(x * x) * math.erfc(x)
    # The continued fraction of erfc, from the inside out.
    below = x
    for term in range(60, 0, -1):
        below = x + term / 2 / below
    return 1 / (below * math.sqrt(math.pi))


def _norm(*parts: Array) -> Array:
    wide = np.sqrt(sum((part.astype(np.float64) ** 2 for part in parts), np.float64(0)))
    return np.asarray(wide.astype(parts[0].dtype))


def _half_away(x: Array) -> Array:
    return np.asarray(np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x))


def _logb(x: Array) -> Array:
    _, exponent = np.frexp(x)
    result = (exponent - 1).astype(x.dtype)
    result = np.where(np.isinf(x), np.inf, np.where(x == 0, -np.inf, result))
    return np.asarray(np.where(np.isnan(x), np.nan, result).astype(x.dtype))


def _ilogb(x: Array) -> Array:
    _, exponent = np.frexp(x)
    special = np.where(np.isinf(x), 2**31 - 1, -(2**31))
    return np.asarray(np.where(np.isfinite(x) & (x != 0), exponent - 1, special).astype(np.int32))


def _of_pi(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: function(math.pi * math.fmod(x, 2))


# -- integers ---------------------------------------------------------------------------------


def _bits(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def _leading_zeros(x: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    filled = _bits(x).copy()
    shift = 1
    while shift < bits:
        filled |= filled >> filled.dtype.type(shift)
        shift *= 2
    return (bits - np.bitwise_count(filled)).astype(np.int32)


def _first_set(x: Array) -> Array:
    lowest = x & -x
    place = 8 * x.dtype.itemsize - _leading_zeros(lowest)
    return np.asarray(np.where(x == 0, 0, place).astype(np.int32))


def _reversed_bits(x: Array) -> Array:
    item = np.unpackbits(_bits(x)[..., None].view(np.uint8), axis=-1, bitorder="little")
    packed = np.packbits(item[..., ::-1], axis=-1, bitorder="little")
    return np.asarray(np.ascontiguousarray(packed).view(x.dtype)[..., 0])


def _high_half(a: Array, b: Array) -> Array:
    if a.dtype.itemsize == 4:
        return ((a.astype(np.int64) * b.astype(np.int64)) >> 32).astype(a.dtype)
    unsigned = mul_high(_bits(a), _bits(b)).view(a.dtype)
    # Two's complement: read as unsigned, a negative factor is 2**64 too large.
    return np.asarray(unsigned - np.where(a < 0, b, 0) - np.where(b < 0, a, 0))


def _low_24(x: Array) -> Array:
    return np.asarray((x << 8) >> 8)


def _unsigned(function: Function) -> Function:
    return lambda *arrays: function(*map(_bits, arrays))


def _mean_down(a: Array, b: Array) -> Array:
    return np.asarray((a & b) + ((a ^ b) >> 1))


def _mean_up(a: Array, b: Array) -> Array:
    return np.asarray((a | b) - ((a ^ b) >> 1))


def _distance(a: Array, b: Array, more: Array) -> Array:
    """``abs(a - b) + more`` modulo 2**32; signed or unsigned by the type of ``a`` and ``b``."""
    distance = np.absolute(a.astype(np.int64) - b.astype(np.int64))
    return distance.astype(np.uint32) + _bits(more)


def _picked_bytes(a: Array, b: Array, selector: Array) -> Array:
    """Four of the eight bytes of ``b`` above ``a``; the fourth bit of a selector is ignored."""
    both = _bits(a).astype(np.uint64) | (_bits(b).astype(np.uint64) << np.uint64(32))
    result = np.zeros(both.shape, np.uint64)
    for place in range(4):
        chosen = (_bits(selector).astype(np.uint64) >> np.uint64(4 * place)) & np.uint64(7)
        byte = (both >> (chosen * np.uint64(8))) & np.uint64(0xFF)
        result = result | (byte << np.uint64(8 * place))
    return result.astype(np.uint32)


def _joined_words(high: Array, low: Array) -> Array:
    joined = (_bits(high).astype(np.uint64) << np.uint64(32)) | _bits(low)
    return np.asarray(joined.view(np.float64))


_HIGH_WORD = np.uint64(0xFFFFFFFF00000000)


def _reciprocal_of_high_word(x: Array) -> Array:
    """The reciprocal of a float64's high word, as a high word; subnormal numbers are zero.

    Source: PTX ISA, ``rcp.approx.ftz.f64``, which does not specify the last bit of the high word.
    """
    flushed = np.where(np.abs(x) < np.finfo(np.float64).tiny, np.copysign(0, x), x)
    reciprocal = np.reciprocal((flushed.view(np.uint64) & _HIGH_WORD).view(np.float64))
    rounded = (reciprocal.view(np.uint64) + np.uint64(1 << 31)) & _HIGH_WORD
    reciprocal = np.where(np.isfinite(reciprocal), rounded.view(np.float64), reciprocal)
    return np.where(
        np.abs(reciprocal) < np.finfo(np.float64).tiny, np.copysign(0, reciprocal), reciprocal
    )


# -- conversions ------------------------------------------------------------------------------

_CONVERSION = re.compile(r"(float|double|u?int|u?ll)2(float|double|u?int|u?ll)_(r[nzud])")
_SAME_BITS = re.compile(r"(?:float|double|u?int|u?longlong)_as_(?:float|double|u?int|u?longlong)")
_ROUND: dict[str, Function] = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}
_INTEGERS: dict[str, np.dtype[Any]] = {
    "int": np.dtype(np.int32),
    "uint": np.dtype(np.uint32),
    "ll": np.dtype(np.int64),
    "ull": np.dtype(np.uint64),
}
_FLOATS: dict[str, np.dtype[Any]] = {"float": np.dtype(np.float32), "double": np.dtype(np.float64)}


def _to_integer(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return whole numbers as integers, out of range as a conversion does."""
    return to_integers(x, dtype, is_signed=dtype.kind == "i")


def _to_float(x: Array, dtype: np.dtype[Any], mode: str) -> Array:
    """Return numbers in a float type, rounded in the direction of ``mode``."""
    array = x.astype(dtype)
    if mode == "rn":
        return array
    if x.dtype.kind == "f":
        above, below = array > x, array < x
    else:
        # Exact, by Python's integers: a float near 2**64 may not fit in 64 bits.
        error = np.frompyfunc(lambda f, i: (int(f) > i) - (int(f) < i), 2, 1)(array, x)
        above, below = error.astype(np.int8) > 0, error.astype(np.int8) < 0
    down = above & ((mode == "rd") | ((mode == "rz") & (array > 0)))
    up = below & ((mode == "ru") | ((mode == "rz") & (array < 0)))
    towards = np.where(down, -np.inf, np.inf).astype(dtype)
    return np.asarray(np.where(down | up, np.nextafter(array, towards), array))


_AS_IN_NUMPY = (
    *("copysign", "fmax", "fmin", "fmod", "isfinite", "isinf", "isnan", "ldexp", "nextafter"),
    *("rint", "signbit"),
)
_FAST = ("cos", "divide", "exp", "log", "log10", "log2", "sin", "tan", "tanh")
_TO_NEAREST = {
    "add": np.add,
    "div": np.divide,
    "mul": np.multiply,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "sub": np.subtract,
}
_BY_STEM: dict[str, Function] = {
    **{name: getattr(np, name) for name in _AS_IN_NUMPY},
    **{f"fast_{name}": getattr(np, name) for name in _FAST},
    **{f"{kind}{name}_rn": function for kind in "fd" for name, function in _TO_NEAREST.items()},
    **dict.fromkeys(("abs", "llabs", "fabs"), np.absolute),
    **dict.fromkeys(("exp10", "fast_exp10"), lambda x: np.power(x.dtype.type(10), x)),
    **dict.fromkeys(("hypot", "norm3d", "norm4d"), _norm),
    **dict.fromkeys(("rhypot", "rnorm3d", "rnorm4d"), lambda *parts: 1 / _norm(*parts)),
    **dict.fromkeys(("mulhi", "mul64hi"), _high_half),
    **dict.fromkeys(
        ("umulhi", "umul64hi"), lambda a, b: mul_high(_bits(a), _bits(b)).view(a.dtype)
    ),
    "pow": np.power,
    "powi": lambda x, n: np.power(x, n.astype(x.dtype)),
    "fast_pow": np.power,
    "fast_fdivide": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "scalbn": np.ldexp,
    "logb": _logb,
    "ilogb": _ilogb,
    "fdim": lambda x, y: np.asarray(
        np.where(np.isnan(x) | np.isnan(y), np.nan, np.maximum(x - y, 0))
    ),
    "remainder": _each(lambda x, y: math.remainder(x, y)),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "sinpi": _each(lambda x: _of_pi(math.sin)(x)),
    "cospi": _each(lambda x: _of_pi(math.cos)(x)),
    "lgamma": _each(
        lambda x: math.inf if x == -math.inf or (x <= 0 and x == math.floor(x)) else math.lgamma(x)
    ),
    "tgamma": _each(lambda x: math.copysign(math.inf, x) if x == 0 else math.gamma(x)),
    "erfinv": _each(_erf_inverse),
    "erfcinv": _each(lambda x: -_normal_quantile(x / 2) / math.sqrt(2)),
    "erfcx": _each(_erfc_scaled),
    "normcdf": _each(lambda x: math.erfc(-x / math.sqrt(2)) / 2),
    "normcdfinv": _each(_normal_quantile),
    "saturate": lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(x.dtype),
    "round": _half_away,
    "nearbyint": np.rint,
    "llrint": lambda x: _to_integer(np.rint(x), np.dtype(np.int64)),
    "llround": lambda x: _to_integer(_half_away(x), np.dtype(np.int64)),
    "finite": np.isfinite,
    "div_rn": np.divide,
    "sqrt_rn": np.sqrt,
    "frsqrt_rn": reciprocal_square_root,
    "fma_rn": FUNCTIONS["math.fma"],
    "fmaf_rn": FUNCTIONS["math.fma"],
    "popc": lambda x: np.bitwise_count(_bits(x)).astype(np.int32),
    "clz": _leading_zeros,
    "ffs": _first_set,
    "brev": _reversed_bits,
    "mul24": lambda a, b: _low_24(a) * _low_24(b),
    "umul24": _unsigned(lambda a, b: _low_24(a) * _low_24(b)),
    "hadd": _mean_down,
    "rhadd": _mean_up,
    "uhadd": _unsigned(_mean_down),
    "urhadd": _unsigned(_mean_up),
    "sad": _distance,
    "usad": _unsigned(_distance),
    "byte_perm": _picked_bytes,
    "hiloint2double": _joined_words,
    "double2hiint": lambda x: (_bits(x) >> np.uint64(32)).astype(np.uint32),
    "double2loint": lambda x: _bits(x).astype(np.uint32),
    "rcp64h": _reciprocal_of_high_word,
    "j0": lambda x: first_kind(np.zeros(x.shape, np.int64), x),
    "j1": lambda x: first_kind(np.ones(x.shape, np.int64), x),
    "jn": first_kind,
    "y0": lambda x: second_kind(np.zeros(x.shape, np.int64), x),
    "y1": lambda x: second_kind(np.ones(x.shape, np.int64), x),
    "yn": second_kind,
    "cyl_bessel_i0": lambda x: modified_first_kind(0, x),
    "cyl_bessel_i1": lambda x: modified_first_kind(1, x),
}
