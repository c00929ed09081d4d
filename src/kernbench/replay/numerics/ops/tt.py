"""The ``tt`` dialect's elementwise functions: exact divisions, clamps, libdevice, casts."""

from __future__ import annotations

import numpy as np

from kernbench.commands import Math
from kernbench.replay.numerics import conversions
from kernbench.replay.numerics.integers import mul_high
from kernbench.replay.numerics.libdevice.functions import find_function
from kernbench.replay.numerics.ops.registry import (
    Function,
    Numeric,
    in_float32,
    on_floats,
    on_unsigned,
)


def _clamp(command: Math) -> Function:
    propagate = bool(command.attrs.get("propagate_nan", False))
    low, high = (np.maximum, np.minimum) if propagate else (np.fmax, np.fmin)
    return lambda x, a, b: high(low(x, a), b)


def _extern(command: Math) -> Function:
    """Look up a libdevice symbol; for narrow types it is computed in float32."""
    symbol, dst = str(command.attrs.get("symbol", "")), command.dst.dtype
    computed_in = np.dtype(np.float32) if conversions.is_narrow(dst) else dst.numpy
    return in_float32(find_function(symbol, computed_in, str(command.line)), dst)


TABLE: dict[str, Numeric] = {
    "tt.precise_divf": on_floats(np.divide),
    "tt.approx_divf": on_floats(np.divide),
    "tt.precise_sqrt": on_floats(np.sqrt),
    "tt.mulhiui": on_unsigned(mul_high),
    "tt.clampf": Numeric(build=_clamp),
    "tt.extern_elementwise": Numeric(build=_extern),
    "tt.elementwise_inline_asm": Numeric(build=_extern),
    "tt.fp_to_fp": Numeric(
        build=conversions.between_floats, build_into=conversions.into_rounded, may_share=True
    ),
    "tt.bitcast": Numeric(build=conversions.bitcast, may_share=True),
}
