"""Transformer Engine's products: cuBLASLt's, with bias, GELU and sums in their epilogues.

Source: ``transformer_engine/pytorch/csrc/extensions/gemm.cpp``. As in cuBLAS, a and b are matrices
by columns: the result's rows are B's, its columns A's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu as gelu_of

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.replaced.extension_modules.definitions import as_product
from kernbench.torch_bridge.replaced.transformer_engine.kernels import (
    NAMESPACE,
    launch,
    refuse_quantized,
)
from kernbench.torch_bridge.replaced.transformer_engine.types import torch_dtype


def generic_gemm(
    a: Tensor, transa: bool, b: Tensor, transb: bool, d: Tensor | None, quantizer: Any,
    output_dtype: Any, bias: Tensor | None, bias_type: Any, gelu: bool, gelu_in: Tensor | None,
    grad: bool, workspace: Tensor, workspace_size: int, accumulate: bool,
    use_split_accumulator: bool, comm_overlap: Any = None, comm_type: Any = None,
    extra_output: Tensor | None = None, bulk_overlap: bool = False, alpha: float = 1.0,
    beta: float | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """Return ``[d, bias gradient, input of GELU, extra output]``."""
    refuse_quantized("gemm", a, b, d, quantizer)
    if comm_overlap is not None:
        raise UnsupportedTorchError(
            f"{NAMESPACE}.gemm that overlaps with communication (userbuffers): kernbench has the "
            "products and the collectives, but not that; leave tp-comm-overlap out"
        )
    into = d
    if into is None:
        into = a.new_empty(_shape(a, transa, b, transb), dtype=torch_dtype(output_dtype, a.dtype))
    of_bias = b.new_empty(b.shape[-1], dtype=into.dtype) if grad and bias is not None else None
    before = into.new_empty(into.shape) if gelu and not grad else gelu_in
    scale = (beta if beta is not None else 1.0) if accumulate else 0.0
    compute = partial(_multiply, transa, transb, gelu, grad, alpha, scale)
    written = [into, *(() if of_bias is None else (of_bias,))]
    if gelu and not grad and before is not None:
        written.append(before)
    added = None if grad else bias
    timing = partial(_timing, [(a, transa, b, transb)], a.dtype, into.dtype)
    launch("gemm", compute, (a, b, into, added, of_bias, before), written, timing)
    return [into, of_bias, before if gelu and not grad else None, extra_output]


def te_general_grouped_gemm(
    a: Sequence[Tensor], transa: bool, b: Sequence[Tensor], transb: bool,
    d: Sequence[Tensor] | None, output_dtype: Any, m_splits: Sequence[int], bias: Sequence[Tensor],
    bias_type: Any, single_output: bool, pre_gelu_out: Sequence[Tensor], grad: bool,
    workspace: Sequence[Tensor], workspace_size: int, accumulate: bool,
    use_split_accumulator: bool, math_sm_count: int,
) -> Sequence[Tensor]:  # fmt: skip
    """Write products of groups, which cuBLASLt runs beside each other; return gradients of biases.

    ``D`` is one tensor in which the groups' rows follow each other (``single_output``), or one of
    each group.
    """
    refuse_quantized("grouped_gemm", *a, *b)
    assert d is not None, "the wrapper makes the results"
    shapes = [
        _shape(*pair) for pair in zip(a, [transa] * len(a), b, [transb] * len(b), strict=True)
    ]
    if single_output:
        rows = [shape[0] for shape in shapes]
        whole = d[0].view(-1, d[0].shape[-1])
        results = list(whole[: sum(rows)].split(rows))
    else:
        results = list(d)
    scale = 1.0 if accumulate else 0.0

    def compute(*tensors: Tensor | None) -> None:
        count = len(results)
        for number in range(count):
            x, y, into, of_bias, before = tensors[number::count]
            assert x is not None
            assert y is not None
            assert into is not None
            if x.numel() == 0 or y.numel() == 0:
                if not accumulate:
                    into.zero_()
                if of_bias is not None and grad:
                    of_bias.zero_()
                continue
            added = None if grad else of_bias
            gradient = of_bias if grad else None
            is_gelu = before is not None and not grad
            _multiply(
                transa, transb, is_gelu, grad, 1.0, scale, x, y, into, added, gradient, before
            )

    def some(tensors: Sequence[Tensor]) -> list[Tensor | None]:
        return [tensor if tensor.numel() else None for tensor in tensors]

    operands = (*a, *b, *results, *some(bias), *some(pre_gelu_out))
    written = [*results]
    if grad:
        written += [tensor for tensor in bias if tensor.numel()]
    else:
        written += [tensor for tensor in pre_gelu_out if tensor.numel()]
    groups = [(x, transa, y, transb) for x, y in zip(a, b, strict=True)]
    timing = partial(_timing, groups, a[0].dtype, results[0].dtype)
    launch("grouped_gemm", compute, operands, written, timing)
    return bias


def _shape(a: Tensor, a_turned: bool, b: Tensor, b_turned: bool) -> tuple[int, ...]:
    columns = a.shape[0] if a_turned else a.shape[-1]
    return (b.shape[-1], columns) if b_turned else (*b.shape[:-1], columns)


def _timing(
    groups: Sequence[tuple[Tensor, bool, Tensor, bool]],
    rows: torch.dtype,
    out: torch.dtype,
    func: Any,
) -> Callable[[int], Any]:
    sizes = []
    for a, a_turned, b, b_turned in groups:
        columns = a.shape[0] if a_turned else a.shape[-1]
        k = a.shape[-1] if a_turned else a.numel() // max(columns, 1)
        if b_turned:
            m = b.shape[-1]
        else:
            m = b.numel() // max(b.shape[-1], 1)
        if m and columns and k:
            sizes.append((1, m, columns, k))
    return as_product(func, tuple(sizes), rows, out, grouped=len(sizes) > 1)


def _multiply(
    a_turned: bool, b_turned: bool, is_gelu: bool, grad: bool, alpha: float, beta: float,
    a: Tensor, b: Tensor, into: Tensor, added: Tensor | None, of_bias: Tensor | None,
    before: Tensor | None,
) -> None:  # fmt: skip
    left, right = b.reshape(-1, b.shape[-1]), a.reshape(-1, a.shape[-1])
    left, right = left.t() if b_turned else left, right.t() if a_turned else right
    # Exact products, summed in 32 bits, and rounded once.
    result = (left.float() @ right.float()) * alpha
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
        of_bias.copy_((result if is_gelu else left.t() if b_turned else left).float().sum(0))
    result = result.reshape(into.shape)
    into.copy_(result + beta * into.float() if beta else result)
