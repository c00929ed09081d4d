"""How a matrix engine rounds float32 operands before it multiplies them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum


class Rounding(StrEnum):
    """How float32 operands of a ``Gemm`` enter the product; sums are float32 in any case."""

    NONE = "none"
    TF32 = "tf32"
    """8 bits of exponent and 10 of mantissa, to nearest, ties to even."""
    TF32_TRUNCATED = "tf32_truncated"
    """The same, towards zero: the lower 13 bits are not looked at."""
    TF32X3 = "tf32x3"
    """Each operand as the sum of two tf32 numbers; the product of both small parts is left out."""
    BF16X3 = "bf16x3"
    """The same with two bfloat16 numbers."""
    BF16X6 = "bf16x6"
    """Each operand as the sum of three bfloat16 numbers; the six largest of nine products."""


class Tf32(StrEnum):
    """How a run rounds float32 products whose kernel asks for less than float32."""

    ROUND = "round"
    TRUNCATE = "truncate"
    IEEE = "ieee"
    """All are computed in float32, whatever the kernel says."""


Roundings = Mapping[str, Rounding]
"""What becomes of float32 operands, by Triton's ``input_precision``."""

PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
IN_FLOAT32: Roundings = dict.fromkeys(PRECISIONS, Rounding.NONE)


def build_roundings(tf32: Tf32, supported: Collection[str]) -> Roundings:
    """Return the roundings of a run on an engine that has the ``supported`` precisions.

    >>> build_roundings(Tf32.ROUND, ["tf32"])["tf32"], build_roundings(Tf32.ROUND, [])["tf32"]
    (<Rounding.TF32: 'tf32'>, <Rounding.NONE: 'none'>)
    """
    if tf32 is Tf32.IEEE:
        return IN_FLOAT32
    asked = {item: Rounding(item) for item in PRECISIONS if item != "ieee" and item in supported}
    if tf32 is Tf32.TRUNCATE and "tf32" in asked:
        asked["tf32"] = Rounding.TF32_TRUNCATED
    return {**IN_FLOAT32, **asked}
