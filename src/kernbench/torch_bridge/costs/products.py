"""Which matrix products an operation consists of; kernbench's own GEMM does them in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import gcd, prod
from typing import Any

import torch

from kernbench.torch_bridge.base.versions import release_of_kernels
from kernbench.torch_bridge.costs.scattered import has_steps

aten = torch.ops.aten
Sizes = tuple[int, ...]
"""Batch, M, N, K; then the row strides of A and B in elements if they are not K and N."""
Products = tuple[Sizes, ...]
"""Empty if there is nothing to multiply."""


def _one(batch: int, m: int, n: int, k: int) -> Products:
    return ((batch, m, n, k),) if batch and m and n and k else ()


def _mm(args: Any, result: Any) -> Products:
    (m, k), n = args[0].shape, args[1].shape[1]
    return _one(1, m, n, k)


_SHARES_WEIGHTS = (2, 0)
"""The first release whose ``matmul`` gives a weight to each matrix of a batch whose rows do not lie
one after another (PyTorch, pull request 76828). Earlier ones copied the rows into one matrix."""


def _bmm(args: Any, result: Any) -> Products:
    batch, m, k = args[0].shape
    if _is_shared(args[1]) and release_of_kernels() < _SHARES_WEIGHTS:
        batch, m = 1, batch * m
    return _one(batch, m, args[1].shape[2], k)


def _is_shared(matrices: Any) -> bool:
    """Return whether a batch is one matrix, which ``torch.matmul`` expands."""
    return bool(has_steps(matrices)) and matrices.stride(0) == 0 < matrices.shape[0] - 1


def _mv(args: Any, result: Any) -> Products:
    m, k = args[0].shape
    return _one(1, m, 1, k)


def _linear(args: Any, result: Any) -> Products:
    x, (n, k) = args[0], args[1].shape
    return _one(1, x.numel() // k if k else 0, n, k)


def _int8_weight(args: Any, result: Any) -> Products:
    x, n = args[0], args[1].shape[0]
    return _one(1, x.shape[0], n, x.shape[1])


def _behind_first(products: Callable[[Any, Any], Products]) -> Callable[[Any, Any], Products]:
    return lambda args, result: products(args[1:], result)


def _grouped(ends_at: int, args: Any, result: Any) -> Products:
    """Return products of groups of rows, of columns or of K, which end where an argument says.

    It is a list of their ends; a tensor, if these are not known: then all have one size.
    """
    a, b = args[0], args[1]
    (m, k), n = a.shape[-2:], b.shape[-1]
    if a.dim() == b.dim() == 3:
        return _one(a.shape[0], m, n, k)
    if a.dim() == 3:
        sizes = _sizes_of(args[ends_at], n, a.shape[0])
        return _of_groups((m, size, k) for size in sizes)
    if b.dim() == 3:
        sizes = _sizes_of(args[ends_at], m, b.shape[0])
        return _of_groups((size, n, k) for size in sizes)
    sizes = _sizes_of(args[ends_at], k, result.shape[0])
    return _of_groups((m, n, size) for size in sizes)


def _sizes_of(ends: Any, total: int, groups: int) -> list[int]:
    if isinstance(ends, list):
        return [max(end - start, 0) for start, end in pairwise((0, *ends))]
    return [-(-total // groups)] * groups


def _of_groups(sizes: Iterable[tuple[int, int, int]]) -> Products:
    """Return products of groups, of which those with equal sizes are one batch."""
    counts = Counter(sizes)
    return tuple(item for size, count in counts.items() for item in _one(count, *size))


def _convolution(args: Any, result: Any) -> Products:
    """A product of patches and weights; a transposed convolution is the gradient of an input."""
    x, weight, transposed, groups = args[0], args[1], args[6], args[8]
    if transposed:
        return _to_input(result, x, weight, groups)
    m, n, taps = _positions(result), weight.shape[0] // groups, prod(weight.shape[2:])
    return _patches(groups, m, n, weight.shape[1] * taps, x)


def _convolution_backward(args: Any, result: Any) -> Products:
    grad, x, weight, transposed, groups, wanted = (args[at] for at in (0, 1, 2, 7, 9, 10))
    convolution_backward: Products = ()
    if wanted[0]:
        if transposed:
            patches = weight.shape[1] * prod(weight.shape[2:])
            convolution_backward += _patches(
                groups, _positions(x), weight.shape[0] // groups, patches, grad
            )
        else:
            convolution_backward += _to_input(x, grad, weight, groups)
    if wanted[1]:
        large, small = (grad, x) if transposed else (x, grad)
        convolution_backward += _to_weight(large, small, weight, groups)
    return convolution_backward


def _positions(x: Any) -> int:
    return int(x.shape[0] * prod(x.shape[2:]))


def _patches(groups: int, m: int, n: int, k: int, x: Any) -> Products:
    """A product of ``m`` patches of ``x``. Patches overlap, and so do the rows of the matrix."""
    row = max(x.numel() // (m * groups), 1) if m else 1
    return tuple((*item, min(row, k), n) for item in _one(groups, m, n, k))


def _to_input(large: Any, small: Any, weight: Any, groups: int) -> Products:
    """The gradient of a convolution's input, from patches of that of its output, if it has any."""
    m, number = _positions(large), _positions(small)
    per_patch = weight.shape[0] // groups * prod(weight.shape[2:])
    k = -(-per_patch * number // m) if m else 0
    return _patches(groups, m, weight.shape[1], k, small)


def _to_weight(large: Any, small: Any, weight: Any, groups: int) -> Products:
    """The gradient of its weight, from the gradient of its output and the patches of its input."""
    m, n, k = weight.shape[0] // groups, weight.shape[1] * prod(weight.shape[2:]), _positions(small)
    row = max(large.numel() // (k * groups), 1) if k else 1
    return tuple((*item, k, min(row, n)) for item in _one(groups, m, n, k))


def _recurrent(args: Any, result: Any) -> Products:
    """One recurrent layer: the inputs of all steps at once; the states are modeled likewise."""
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


_WITH_SUMMAND = frozenset(
    {"aten::addmm", "aten::baddbmm", "aten::addmv", "aten::_addmm_activation"}
)
PRODUCTS: dict[Any, Callable[[Any, Any], Products]] = {
    aten.mm.default: _mm,
    aten.mm.out: _mm,
    aten.addmm.default: _behind_first(_mm),
    aten.addmm.out: _behind_first(_mm),
    aten.bmm.default: _bmm,
    aten.bmm.out: _bmm,
    aten.baddbmm.default: _behind_first(_bmm),
    aten.baddbmm.out: _behind_first(_bmm),
    aten.mv.default: _mv,
    aten.addmv.default: _behind_first(_mv),
    aten.linear.default: _linear,
    aten._addmm_activation.default: _behind_first(_mm),
    aten._addmm_activation.out: _behind_first(_mm),
    aten._int_mm.default: _mm,
    aten._int_mm.out: _mm,
    aten._weight_int8pack_mm.default: _int8_weight,
    aten._weight_int4pack_mm.default: lambda args, result: _one(
        1, args[0].shape[0], result.shape[1], args[0].shape[1]
    ),
    aten._grouped_mm.default: partial(_grouped, 2),
    aten._scaled_mm.default: _mm,
    aten._scaled_mm.out: _mm,
    aten._scaled_mm_v2.default: _mm,
    aten._scaled_mm_v2.out: _mm,
    aten._scaled_grouped_mm.default: partial(_grouped, 4),
    aten._scaled_grouped_mm_v2.default: partial(_grouped, 8),
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


def unfused(func: Any, args: Any) -> tuple[Any, Any]:
    """Return the call of a plain convolution that takes the time of a call, else the call itself.

    cuDNN adds a bias and applies ReLU to results before it stores them.
    """
    if func is aten.cudnn_convolution_relu.default:
        x, weight, _, stride, padding, dilation, groups = args
    elif func is aten.cudnn_convolution.default:
        x, weight, padding, stride, dilation, groups, *_ = args
    else:
        return func, args
    zeros = [0] * len(stride)
    plain = (x, weight, None, stride, padding, dilation, False, zeros, groups)
    return aten.convolution.default, plain


CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})
RECURRENT = frozenset({aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default})
RECURRENT_ON_HOST = frozenset(
    {aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default}
)
"""What PyTorch's CPU has for a layer, where a program leaves cuDNN out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandLayout:
    """How the matrices of a product lie in memory, as far as its time depends on it."""

    access_bytes: int = 16
    """The bytes that a lane can load at a time: the most, up to 16, that all rows are multiples
    of."""
    a_shared: bool = False
    """Whether A is one matrix for the whole batch: ``torch.matmul`` expands a weight."""
    b_shared: bool = False
    weight_bytes: float | None = None
    """Bytes per element of B, scales included, where it is narrower than it multiplies."""
    grouped: bool = False
    """Whether the products are groups, which one launch goes over."""
    along_k: bool = True
    """Whether A and B both lie along K, as those of a linear layer do."""


PLAIN = OperandLayout()
BATCHED = frozenset({"aten::bmm", "aten::baddbmm"})
"""Products of two matrices each, of which neither has to be a weight."""


def flops_of(products: Products) -> int:
    """Return the multiplications and additions of products, without what fills up tiles."""
    return sum(2 * prod(sizes[:4]) for sizes in products)


def layout_of(func: Any, args: Any, result: Any) -> OperandLayout:
    """Return how the operands of a product lie; of convolutions, for which others ask, nothing."""
    if func in CONVOLUTIONS:
        return PLAIN
    if func is aten._weight_int8pack_mm.default:
        return OperandLayout(weight_bytes=1.0)
    if func is aten._weight_int4pack_mm.default:
        # Half a byte, and for each group a scale and a zero of 16 bits.
        return OperandLayout(weight_bytes=0.5 + 4.0 / args[2])
    name = func._schema.name
    first = first_of(func)
    a, b = args[first : first + 2]
    steps = [
        step * item.element_size()
        for item in (a, b, result)
        if isinstance(item, torch.Tensor) and has_steps(item)
        for size, step in zip(item.shape, item.stride(), strict=True)
        if size > 1 and step > 1
    ]
    shared = [name in BATCHED and _is_shared(item) for item in (a, b)]
    return OperandLayout(
        access_bytes=gcd(16, *steps),
        a_shared=shared[0],
        b_shared=shared[1],
        grouped="grouped_mm" in name,
        along_k=not (_is_along(a, -2) or _is_along(b, -2 if func is aten.linear.default else -1)),
    )


def _is_along(matrix: Any, dim: int) -> bool:
    """Return whether elements of a matrix lie side by side in dim -1 or -2."""
    is_plain = has_steps(matrix) and matrix.dim() > 1
    return is_plain and matrix.stride(dim) == 1 < matrix.stride(-3 - dim)


def of_complex(products: Products) -> Products:
    """Return the real products that are as much work: each number of B has a matrix of 2 x 2."""
    return tuple((batch, m, 2 * n, 2 * k) for batch, m, n, k, *_ in products)


def operand_of(func: Any, args: Any, result: Any) -> Any:
    """Return an operand whose dtype is that of the multiplication."""
    if func._schema.name == "aten::_int_mm":
        return args[0]
    if "out_dtype" not in {argument.name for argument in func._schema.arguments}:
        return result
    # Their first argument is added to the products.
    return args[first_of(func)]


def first_of(func: Any) -> int:
    """Return the position of a product's first operand: some are given a summand before."""
    return int(func._schema.name in _WITH_SUMMAND)
