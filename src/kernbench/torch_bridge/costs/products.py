"""Which matrix products an operation is: kernbench's own GEMM does them one after another."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

aten = torch.ops.aten
Sizes = tuple[int, int, int, int]
"""Batch, M, N, K."""
Products = tuple[Sizes, ...]
"""Empty where there is nothing to multiply."""


def _one(batch: int, m: int, n: int, k: int) -> Products:
    return ((batch, m, n, k),) if batch and m and n and k else ()


def _mm(args: Any, result: Any) -> Products:
    (m, k), n = args[0].shape, args[1].shape[1]
    return _one(1, m, n, k)


def _bmm(args: Any, result: Any) -> Products:
    batch, m, k = args[0].shape
    return _one(batch, m, args[1].shape[2], k)


def _mv(args: Any, result: Any) -> Products:
    m, k = args[0].shape
    return _one(1, m, 1, k)


def _linear(args: Any, result: Any) -> Products:
    x, (n, k) = args[0], args[1].shape
    return _one(1, x.numel() // k if k else 0, n, k)


def _behind_first(products: Callable[[Any, Any], Products]) -> Callable[[Any, Any], Products]:
    return lambda args, result: products(args[1:], result)


def _grouped_mm(args: Any, result: Any) -> Products:
    """Groups of rows, each with a matrix of its own; as if all were of one size."""
    a, b = args[0], args[1]
    if a.dim() == 2 and b.dim() == 3:
        groups, k, n = b.shape
        return _one(groups, -(-a.shape[0] // groups), n, k)
    if a.dim() == 2:
        groups = result.shape[0]
        return _one(groups, a.shape[0], b.shape[1], -(-a.shape[1] // groups))
    return _one(
        a.shape[0], a.shape[1], b.shape[-1] // (1 if b.dim() == 3 else a.shape[0]), a.shape[2]
    )


def _convolved(large: Any, small: Any, weight: Any, groups: int) -> tuple[int, int, int, int]:
    """Return groups, positions, channels made per group, and elements that each is made of.

    A convolution is a product of patches and weights; a transposed one is its backward.
    """
    positions = small.shape[0] * prod(small.shape[2:])
    return groups, positions, weight.shape[0] // groups, weight.shape[1] * prod(weight.shape[2:])


def _convolution(args: Any, result: Any) -> Products:
    x, weight, transposed, groups = args[0], args[1], args[6], args[8]
    batch, m, n, k = _convolved(result, x if transposed else result, weight, groups)
    return _one(batch, m, k, n) if transposed else _one(batch, m, n, k)


def _convolution_backward(args: Any, result: Any) -> Products:
    grad, x, weight, transposed, groups, wanted = (args[at] for at in (0, 1, 2, 7, 9, 10))
    batch, m, n, k = _convolved(x, x if transposed else grad, weight, groups)
    to_input = _one(batch, m, n, k) if transposed else _one(batch, m, k, n)
    to_weight = _one(batch, n, k, m)
    return (to_input if wanted[0] else ()) + (to_weight if wanted[1] else ())


def _recurrent(args: Any, result: Any) -> Products:
    """One layer: the inputs of all steps at once, and the state step by step as if at once."""
    x, from_input, from_state = args[:3]
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    return tuple(
        sizes
        for weight in (from_input, from_state)
        for sizes in _one(1, rows, weight.shape[0], weight.shape[1])
    )


def _recurrent_backward(args: Any, result: Any) -> Products:
    forward = _recurrent(args, result)
    to_input = tuple((batch, m, k, n) for batch, m, n, k in forward)
    return to_input + tuple((batch, n, k, m) for batch, m, n, k in forward)


PRODUCTS: dict[Any, Callable[[Any, Any], Products]] = {
    aten.mm.default: _mm,
    aten.addmm.default: _behind_first(_mm),
    aten.bmm.default: _bmm,
    aten.baddbmm.default: _behind_first(_bmm),
    aten.mv.default: _mv,
    aten.addmv.default: _behind_first(_mv),
    aten.linear.default: _linear,
    aten._grouped_mm.default: _grouped_mm,
    aten._scaled_mm.default: _mm,
    aten._scaled_mm.out: _mm,
    aten._scaled_mm_v2.default: _mm,
    aten._scaled_mm_v2.out: _mm,
    aten._scaled_grouped_mm.default: _grouped_mm,
    aten._scaled_grouped_mm_v2.default: _grouped_mm,
    aten.mm.dtype: _mm,
    aten.mm.dtype_out: _mm,
    aten.bmm.dtype: _bmm,
    aten.bmm.dtype_out: _bmm,
    aten.addmm.dtype: _behind_first(_mm),
    aten.addmm.dtype_out: _behind_first(_mm),
    aten.baddbmm.dtype: _behind_first(_bmm),
    aten.baddbmm.dtype_out: _behind_first(_bmm),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mkldnn_rnn_layer.default: _recurrent,
    aten.mkldnn_rnn_layer_backward.default: _recurrent_backward,
}


def operand_of(func: Any, args: Any, result: Any) -> Any:
    """Return a tensor of the dtype in which the products are multiplied."""
    if "out_dtype" not in {each.name for each in func._schema.arguments}:
        return result
    # Behind what is summed up, if anything is.
    return args[func._schema.name in ("aten::addmm", "aten::baddbmm")]
