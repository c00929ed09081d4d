"""Quantisation to FP8 and INT8, alone and behind norms and activations, and scaled products.

Source: the definitions that vLLM's own tests compare its kernels with
(``tests/kernels/quant_utils.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    OperatorAsked,
    as_operation,
    defines,
    streams,
)
from kernbench.torch_bridge.replaced.extension_modules.dense import added, normalized

aten = torch.ops.aten


def _largest(dtype: torch.dtype) -> float:
    kind = torch.finfo if dtype.is_floating_point else torch.iinfo
    return float(kind(dtype).max)


def _over(scale: Tensor, shape: torch.Size) -> Tensor:
    """Return scales of blocks of a matrix, of rows or of all, for each of its elements."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.dim() == 1:
        scale = scale.view(-1, 1) if scale.numel() == shape[0] != shape[1] else scale.view(1, -1)
    for dim in (0, 1):
        if scale.shape[dim] not in (1, shape[dim]):
            size = -(-shape[dim] // scale.shape[dim])
            scale = scale.repeat_interleave(size, dim).narrow(dim, 0, shape[dim])
    return scale


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    largest = _largest(dtype)
    if not dtype.is_floating_point:
        return x.round().clamp(-largest - 1, largest).to(dtype)
    return x.clamp(-largest, largest).to(dtype)


def _quantize(result: Tensor, x: Tensor, scale: Tensor) -> None:
    rows = x.float().reshape(-1, x.shape[-1])
    result.copy_(_rounded(rows / _over(scale.float(), rows.shape), result.dtype).view(x.shape))


def _scale_rows(scale: Tensor, result: Tensor, x: Tensor, most: Tensor | None) -> None:
    """Write the scales of rows for which their largest number becomes that of the dtype."""
    largest, peaks = _largest(result.dtype), x.float().abs().amax(-1)
    if most is not None:
        peaks = peaks.minimum(most)
    least = 1 / (largest * 512) if result.is_floating_point() else torch.finfo(torch.float32).eps
    scale.copy_((peaks / largest).clamp(min=least).view(scale.shape))


def _twice(result: Tensor, input: Tensor, **named: Any) -> tuple[int, int]:
    # The scale is found first, and the input read again.
    return 2 * num_bytes((input,)), num_bytes((result,))


@streams("static_scaled_fp8_quant")
def _static_fp8(
    result: Tensor, input: Tensor, scale: Tensor, group_shape: list[int] | None = None
) -> None:
    _quantize(result, input, scale)


@streams("static_scaled_int8_quant")
def _static_int8(result: Tensor, input: Tensor, scale: Tensor) -> None:
    _quantize(result, input, scale)


@streams("dynamic_scaled_fp8_quant", moves=_twice)
def _dynamic_fp8(result: Tensor, input: Tensor, scale: Tensor) -> None:
    scale.fill_(input.float().abs().max() / _largest(result.dtype))
    _quantize(result, input, scale)


@streams("dynamic_scaled_int8_quant")
def _dynamic_int8(result: Tensor, input: Tensor, scale: Tensor) -> None:
    _scale_rows(scale, result, input, None)
    _quantize(result, input, scale)


@streams("dynamic_per_token_scaled_fp8_quant")
def _dynamic_rows(result: Tensor, input: Tensor, scale: Tensor, scale_ub: Tensor | None) -> None:
    _scale_rows(scale, result, input, scale_ub)
    _quantize(result, input, scale)


@streams("per_token_group_fp8_quant")
def _groups(
    input: Tensor,
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    eps: float,
    fp8_min: float,
    fp8_max: float,
    scale_ue8m0: bool,
    dummy_is_scale_transposed: bool = False,
    dummy_is_tma_aligned: bool = False,
) -> None:
    groups = input.float().unflatten(-1, (-1, group_size))
    scales = groups.abs().amax(-1).clamp(min=eps) / fp8_max
    if scale_ue8m0:
        scales = scales.log2().ceil().exp2()
    output_s.copy_(scales)
    made = (groups / scales.unsqueeze(-1)).clamp(fp8_min, fp8_max)
    output_q.copy_(made.flatten(-2).to(output_q.dtype))


@streams("silu_and_mul_quant")
def _silu_and_mul_quant(result: Tensor, input: Tensor, scale: Tensor) -> None:
    first, second = input.float().chunk(2, -1)
    _quantize(result, silu(first) * second, scale)


@streams("rms_norm_static_fp8_quant")
def _rms_norm_fp8(
    result: Tensor, input: Tensor, weight: Tensor, scale: Tensor, epsilon: float
) -> None:
    _quantize(result, normalized(input, weight, epsilon), scale)


@streams("fused_add_rms_norm_static_fp8_quant", over=("residual",))
def _fused_add_rms_norm_fp8(
    result: Tensor, input: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, epsilon: float
) -> None:
    _quantize(result, normalized(added(input, residual), weight, epsilon), scale)


@streams("rms_norm_dynamic_per_token_quant", over=("residual",))
def _rms_norm_rows(
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
    scale_ub: Tensor | None,
    residual: Tensor | None,
) -> None:
    x = input if residual is None else added(input, residual)
    made = normalized(x, weight, epsilon)
    _scale_rows(scale, result, made, scale_ub)
    _quantize(result, made, scale)


@defines("cutlass_scaled_mm")
def _scaled_mm(
    asked: OperatorAsked,
    out: Tensor,
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
) -> None:
    def compute(
        out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None
    ) -> None:
        rows = a.float() * _over(a_scales.view(-1, 1) if a_scales.dim() < 2 else a_scales, a.shape)
        columns = b.float() * _over(
            b_scales.view(1, -1) if b_scales.dim() < 2 else b_scales, b.shape
        )
        made = rows @ columns
        out.copy_(made if bias is None else made + bias.float())

    func = aten._scaled_mm.default if a.is_floating_point() else aten._int_mm.default
    asked.run(compute, as_operation(func, (a, b, a_scales, b_scales), out))
