"""Transformer Engine's products: cuBLASLt's, with bias, GELU and sums in their epilogues.

Source: ``transformer_engine/pytorch/csrc/extensions/gemm.cpp``. As in cuBLAS, a and b are matrices
by columns: the result's rows are B's, its columns A's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu as gelu_of

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.replaced.extension_modules.definitions import as_product
from kernbench.torch_bridge.replaced.transformer_engine.fp8 import (
    Operand,
    Target,
    operand,
    widened,
)
from kernbench.torch_bridge.replaced.transformer_engine.kernels import (
    NAMESPACE,
    is_plain,
    launch,
    refuse_quantized,
    torch_dtype,
)


def generic_gemm(
    a: Any, transa: bool, b: Any, transb: bool, d: Any, quantizer: Any,
    output_dtype: Any, bias: Tensor | None, bias_type: Any, gelu: bool, gelu_in: Tensor | None,
    grad: bool, workspace: Tensor, workspace_size: int, accumulate: bool,
    use_split_accumulator: bool, comm_overlap: Any = None, comm_type: Any = None,
    extra_output: Tensor | None = None, bulk_overlap: bool = False, alpha: float = 1.0,
    beta: float | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """Return ``[d, bias gradient, input of GELU, extra output]``."""
    refuse_quantized("gemm", d if quantizer is None else None)
    if comm_overlap is not None:
        raise UnsupportedTorchError(
            f"{NAMESPACE}.gemm that overlaps with communication (userbuffers): kernbench has the "
            "products and the collectives, but not that; leave tp-comm-overlap out"
        )
    x, y = _operands("gemm", a, transa, b, transb)
    dtype = torch_dtype(output_dtype, x.data.dtype)
    shape = _shape(x.shape, transa, y.shape, transb)
    target = Target("gemm", shape, x.data, d.dtype if is_plain(d) else dtype, quantizer, d)
    is_kept = gelu and not grad
    of_bias = before = None
    if grad and bias is not None:
        of_bias = y.data.new_empty(y.shape[-1], dtype=dtype)
    if gelu:
        before = x.data.new_empty(shape, dtype=dtype) if is_kept else gelu_in
    scale = (beta if beta is not None else 1.0) if accumulate else 0.0
    written = [*target.written, *(() if of_bias is None else (of_bias,))]
    if is_kept and before is not None:
        written.append(before)
    added, count = None if grad else bias, 7

    def compute(*value: Any) -> None:
        result = _multiply(x.is_turned, y.is_turned, gelu, grad, alpha, *value[:count])
        rest = value[count:]
        if scale:
            result = result + scale * rest[0].reshape(result.shape).float()
        target.store(result, *rest)

    operands = (x.data, x.scale, y.data, y.scale, added, of_bias, before)
    timing = partial(_timing, [(x, transa, y, transb)], dtype)
    launch("gemm", compute, (*operands, *target.read, *target.written), written, timing)
    return [target.finish(), of_bias, before if is_kept else None, extra_output]


def te_general_grouped_gemm(
    a: Sequence[Any], transa: bool, b: Sequence[Any], transb: bool,
    d: Sequence[Tensor] | None, output_dtype: Any, m_splits: Sequence[int], bias: Sequence[Tensor],
    bias_type: Any, single_output: bool, pre_gelu_out: Sequence[Tensor], grad: bool,
    workspace: Sequence[Tensor], workspace_size: int, accumulate: bool,
    use_split_accumulator: bool, math_sm_count: int,
) -> Sequence[Tensor]:  # fmt: skip
    """Write products of groups, which cuBLASLt runs beside each other; return gradients of biases.

    ``D`` is one tensor in which the groups' rows follow each other (``single_output``), or one of
    each group.
    """
    assert d is not None, "the wrapper makes the results"
    pairs = [_operands("grouped_gemm", x, transa, y, transb) for x, y in zip(a, b, strict=True)]
    shapes = [_shape(x.shape, transa, y.shape, transb) for x, y in pairs]
    if single_output:
        rows = [shape[0] for shape in shapes]
        whole = d[0].view(-1, d[0].shape[-1])
        results = list(whole[: sum(rows)].split(rows))
    else:
        results = list(d)
    count, is_kept = len(results), not grad

    def compute(*tensors: Any) -> None:
        for number, (x, y) in enumerate(pairs):
            left, of_left, right, of_right, into, of_bias, before = tensors[number::count]
            if left.numel() == 0 or right.numel() == 0:
                if not accumulate:
                    into.zero_()
                if of_bias is not None and grad:
                    of_bias.zero_()
                continue
            added, gradient = (of_bias, None) if is_kept else (None, of_bias)
            how = (x.is_turned, y.is_turned, is_kept and before is not None, grad, 1.0)
            result = _multiply(
                *how, left, of_left, right, of_right, added, gradient, before
            ).reshape(into.shape)
            into.copy_(result + into.float() if accumulate else result)

    def some(tensors: Sequence[Tensor]) -> list[Tensor | None]:
        return [tensor if tensor.numel() else None for tensor in tensors]

    lists = zip(*((x.data, x.scale, y.data, y.scale) for x, y in pairs), strict=True)
    flat = [tensor for tensors in lists for tensor in tensors]
    operands = (*flat, *results, *some(bias), *some(pre_gelu_out))
    written = [*results, *(tensor for tensor in (bias if grad else pre_gelu_out) if tensor.numel())]
    groups = [(x, transa, y, transb) for x, y in pairs]
    launch("grouped_gemm", compute, operands, written, partial(_timing, groups, results[0].dtype))
    return bias


def _operands(name: str, a: Any, transa: bool, b: Any, transb: bool) -> tuple[Operand, Operand]:
    return (
        operand(name, a, transa, by_rows=transa),
        operand(name, b, transb, by_rows=not transb),
    )


def _shape(
    a: tuple[int, ...], a_turned: bool, b: tuple[int, ...], b_turned: bool
) -> tuple[int, ...]:
    columns = a[0] if a_turned else a[-1]
    return (b[-1], columns) if b_turned else (*b[:-1], columns)


def _timing(
    groups: Sequence[tuple[Operand, bool, Operand, bool]], out: torch.dtype, func: Any
) -> Callable[[int], Any]:
    sizes = []
    for x, a_turned, y, b_turned in groups:
        columns = x.shape[0] if a_turned else x.shape[-1]
        k = x.shape[-1] if a_turned else prod(x.shape[:-1])
        m = y.shape[-1] if b_turned else prod(y.shape[:-1])
        if m and columns and k:
            sizes.append((1, m, columns, k))
    rows = groups[0][0].data.dtype
    return as_product(func, tuple(sizes), rows, out, grouped=len(sizes) > 1)


def _multiply(
    a_turned: bool, b_turned: bool, is_gelu: bool, grad: bool, alpha: float, a: Tensor,
    a_scale: Tensor | None, b: Tensor, b_scale: Tensor | None, added: Tensor | None,
    of_bias: Tensor | None, before: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return rows of B times columns of A in float32; write what else the epilogue has."""
    left = widened(b.reshape(-1, b.shape[-1]), b_scale)
    right = widened(a.reshape(-1, a.shape[-1]), a_scale)
    left, right = left.t() if b_turned else left, right.t() if a_turned else right
    # Exact products, summed in 32 bits, and rounded once.
    result = (left @ right) * alpha
    if added is not None:
        result = result + added.float()
    if is_gelu and before is not None:
        if grad:
            wide = before.reshape(result.shape).float().requires_grad_()
            with torch.enable_grad():
                (result,) = torch.autograd.grad(gelu_of(wide, approximate="tanh"), wide, result)
        else:
            before.copy_(result.reshape(before.shape))
            result = gelu_of(result, approximate="tanh")
    if of_bias is not None:
        # Of the rows whose products with A's are summed: B's, which are turned here.
        of_bias.copy_((result if is_gelu else left.t()).sum(0))
    return result
