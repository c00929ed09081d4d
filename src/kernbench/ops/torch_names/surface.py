"""The operations of this package by torch's names, as tensors and ``torch`` have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from kernbench.ops import elementwise, reductions
from kernbench.ops.normalization import softmax
from kernbench.ops.products.gemm import matmul
from kernbench.ops.torch_names import (
    contractions,
    extremes,
    functions,
    sorting,
    statistics,
)
from kernbench.runtime_api import Tensor


def _softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Return the softmax along ``dim``, computed after conversion to ``dtype``."""
    if dtype is not None:
        x = x.to(dtype)
    if not x.shape:
        return softmax(x[None]).reshape(())
    return softmax(x.transpose(dim, -1)).transpose(dim, -1)


def _where(x: Tensor, condition: Tensor, other: Any) -> Tensor:
    """Return ``x`` where ``condition`` holds, else ``other``."""
    return elementwise.where(condition, x, other)


_BOTH: dict[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        functions.abs, elementwise.add, extremes.all, statistics.allclose, extremes.amax,
        extremes.amin, extremes.any, extremes.argmax, extremes.argmin, sorting.argsort,
        contractions.bmm, functions.clamp, functions.cos, statistics.cumsum, elementwise.div,
        elementwise.eq, statistics.equal, elementwise.exp, elementwise.ge, elementwise.gt,
        statistics.isclose, elementwise.le, elementwise.log, elementwise.lt, matmul, extremes.max,
        elementwise.maximum, reductions.mean, extremes.min, elementwise.minimum, contractions.mm,
        elementwise.mul, elementwise.ne, elementwise.neg, statistics.norm, functions.pow,
        functions.reciprocal, elementwise.relu, functions.rsqrt, functions.sigmoid, functions.sin,
        sorting.sort, elementwise.sqrt, functions.square, statistics.std, elementwise.sub,
        reductions.sum, functions.tanh, sorting.topk, statistics.var,
    )
}  # fmt: skip
TENSOR_METHODS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {**_BOTH, "softmax": _softmax, "where": _where}
)
"""Methods of tensors, each a function whose first argument is the tensor."""
TORCH_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {**_BOTH, "einsum": contractions.einsum, "softmax": _softmax, "where": elementwise.where}
)
"""Functions of a run's ``torch``."""
