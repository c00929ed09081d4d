"""The tensor that a bench sees: views, host reads, writes, and arithmetic by Triton kernels."""

from __future__ import annotations

from numbers import Real
from typing import Any, Self

import numpy as np

from kernbench.runtime_api.tensors.tensor_writes import TensorWrites


class Tensor(TensorWrites):
    """An array in the HBM of one SIP. Arithmetic launches kernels of ``kernbench.ops``."""

    __slots__ = ()

    def __add__(self, other: Any) -> Tensor:
        return self.context.operators.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return self.context.operators.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return self.context.operators.sub(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return self.context.operators.sub(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return self.context.operators.mul(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return self.context.operators.mul(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return self.context.operators.div(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self.context.operators.div(other, self)

    def __neg__(self) -> Tensor:
        return self.context.operators.mul(self, -1)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.context.operators.matmul(self, other)

    def __lt__(self, other: Any) -> Tensor:
        return self.context.operators.lt(self, other)

    def __le__(self, other: Any) -> Tensor:
        return self.context.operators.le(self, other)

    def __gt__(self, other: Any) -> Tensor:
        return self.context.operators.gt(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return self.context.operators.ge(self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        if not _is_operand(other):
            return NotImplemented
        return self.context.operators.eq(self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        if not _is_operand(other):
            return NotImplemented
        return self.context.operators.ne(self, other)

    # Equality is by element, as in torch; a tensor is a key by what it is, not by what it holds.
    __hash__ = object.__hash__

    def __iadd__(self, other: Any) -> Self:
        return self.copy_(self + other)

    def __isub__(self, other: Any) -> Self:
        return self.copy_(self - other)

    def __imul__(self, other: Any) -> Self:
        return self.copy_(self * other)

    def __itruediv__(self, other: Any) -> Self:
        return self.copy_(self / other)


def _is_operand(other: object) -> bool:
    """Return whether something can be compared with a tensor element by element."""
    return isinstance(other, (Tensor, Real, np.bool_))
