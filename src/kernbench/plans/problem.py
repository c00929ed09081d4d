"""A product, and which of its operands are cached."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kernbench.dtypes import DType, bfloat16

Cached = tuple[tuple[int, Fraction], ...]
"""Cached shares of a launch's parameters, by their index."""


@dataclass(frozen=True, slots=True)
class Problem:
    """``C[m, n] = A[m, k] @ B[k, n]`` of one dtype."""

    m: int
    n: int
    k: int
    dtype: DType

    @property
    def out(self) -> DType:
        return bfloat16 if self.dtype.itemsize == 1 else self.dtype

    @property
    def input_bytes(self) -> int:
        return self.m * self.k * self.dtype.itemsize

    @property
    def weight_bytes(self) -> int:
        return self.k * self.n * self.dtype.itemsize
