"""Quantisation to FP8 and INT8, alone and behind norms and activations, and scaled products.

Source: the definitions that vLLM's own tests compare its kernels with
(``tests/kernels/quant_utils.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    as_operation,
    launches,
    makes,
    streams,
)
from kernbench.torch_bridge.replaced.extension_modules.dense import (
    added,
    normalized,
    situ,
)

aten = torch.ops.aten


def _largest(dtype: torch.dtype) -> float:
    kind = torch.finfo if dtype.is_floating_point else torch.iinfo
    return float(kind(dtype).max)


def over_blocks(scale: Tensor, shape: torch.Size) -> Tensor:
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


def quantize(result: Tensor, x: Tensor, scale: Tensor) -> None:
    rows = x.float().reshape(-1, x.shape[-1])
    result.copy_(
        _rounded(rows / over_blocks(scale.float(), rows.shape), result.dtype).view(x.shape)
    )


def scale_rows(scale: Tensor, result: Tensor, x: Tensor, most: Tensor | None) -> None:
    """Write the scales of rows for which their largest number becomes that of the dtype."""
    largest, peaks = _largest(result.dtype), x.float().abs().amax(-1)
    if most is not None:
        peaks = peaks.minimum(most)
    least = 1 / (largest * 512) if result.is_floating_point() else torch.finfo(torch.float32).eps
    scale.copy_((peaks / largest).clamp(min=least).view(scale.shape))


def scale_all(scale: Tensor, result: Tensor, x: Tensor) -> None:
    """Write the scale of all for which the largest number becomes that of the dtype."""
    scale.fill_(x.float().abs().max() / _largest(result.dtype))


def _twice(result: Tensor, input: Tensor, **named: Any) -> tuple[int, int]:
    # The scale is found first, and the input read again.
    return 2 * num_bytes((input,)), num_bytes((result,))


@streams("static_scaled_fp8_quant")
def _static_fp8(
    result: Tensor, input: Tensor, scale: Tensor, group_shape: list[int] | None = None
) -> None:
    quantize(result, input, scale)


@streams("static_scaled_int8_quant")
def _static_int8(result: Tensor, input: Tensor, scale: Tensor) -> None:
    quantize(result, input, scale)


@streams("dynamic_scaled_fp8_quant", moves=_twice)
def _dynamic_fp8(result: Tensor, input: Tensor, scale: Tensor) -> None:
    scale_all(scale, result, input)
    quantize(result, input, scale)


@streams("dynamic_scaled_int8_quant")
def _dynamic_int8(result: Tensor, input: Tensor, scale: Tensor) -> None:
    scale_rows(scale, result, input, None)
    quantize(result, input, scale)


@streams("dynamic_per_token_scaled_fp8_quant")
def _dynamic_rows(result: Tensor, input: Tensor, scale: Tensor, scale_ub: Tensor | None) -> None:
    scale_rows(scale, result, input, scale_ub)
    quantize(result, input, scale)


def in_groups(
    result: Tensor,
    scale: Tensor,
    x: Tensor,
    size: int,
    *,
    least: float = 0.0,
    most: Tensor | None = None,
    powers: bool = False,
    largest: float = 0.0,
) -> None:
    """Write rows in groups whose largest number becomes the dtype's, and the groups' scales.

    Scales ``(rows, groups)``, by whatever strides; powers of two where these are asked for.
    """
    largest = largest or _largest(result.dtype)
    groups = x.float().unflatten(-1, (-1, size))
    peaks = groups.abs().amax(-1).clamp(min=least)
    if most is not None:
        peaks = peaks.minimum(most)
    scales = peaks / largest
    if least == 0.0:
        scales = scales.clamp(min=1 / (largest * 512))
    if powers:
        scales = scales.log2().ceil().exp2()
    scale.copy_(scales if scale.shape == scales.shape else scales.t())
    built = groups / scales.unsqueeze(-1)
    result.copy_(_rounded(built.flatten(-2), result.dtype))


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
    in_groups(output_q, output_s, input, group_size, least=eps, powers=scale_ue8m0, largest=fp8_max)


@streams("per_token_group_quant_int8")
def _int8_groups(
    input: Tensor,
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    eps: float,
    int8_min: float,
    int8_max: float,
) -> None:
    in_groups(output_q, output_s, input, group_size, least=eps, largest=int8_max)


@streams("rms_norm_per_block_quant", over=("residual",))
def _rms_norm_groups(
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
    scale_ub: Tensor | None,
    residual: Tensor | None,
    group_size: int,
    is_scale_transposed: bool = False,
) -> None:
    x = input if residual is None else added(input, residual)
    in_groups(result, scale, normalized(x, weight, epsilon), group_size, most=scale_ub)


@streams("silu_and_mul_per_block_quant")
def _silu_and_mul_groups(
    out: Tensor,
    input: Tensor,
    scales: Tensor,
    group_size: int,
    scale_ub: Tensor | None = None,
    is_scale_transposed: bool = False,
) -> None:
    first, second = input.float().chunk(2, -1)
    in_groups(out, scales, silu(first) * second, group_size, most=scale_ub)


@streams("situ_and_mul_quant")
def _situ_and_mul_quant(
    out: Tensor,
    scale: Tensor,
    input: Tensor,
    beta: float = 1.0,
    linear_beta: float = -1.0,
    group_size: int = 0,
    num_valid_tokens: Tensor | None = None,
    topk: int = 1,
) -> None:
    rows = len(input) if num_valid_tokens is None else int(num_valid_tokens) * topk
    gate, up = input[:rows].float().chunk(2, -1)
    x = situ(gate, up, beta, linear_beta)
    scale.fill_(1.0)
    in_groups(out[:rows], scale[:rows], x, group_size or x.shape[-1])


@streams("persistent_masked_m_silu_mul_quant")
def _silu_of_experts(
    input: Tensor, counts: Tensor, y_q: Tensor, y_s: Tensor, use_ue8m0: bool
) -> None:
    for expert, count in enumerate(counts.tolist()):
        first, second = input[expert, :count].float().chunk(2, -1)
        in_groups(
            y_q[expert, :count], y_s[expert, :count], silu(first) * second, 128, powers=use_ue8m0
        )


@streams("silu_and_mul_quant")
def _silu_and_mul_quant(result: Tensor, input: Tensor, scale: Tensor) -> None:
    first, second = input.float().chunk(2, -1)
    quantize(result, silu(first) * second, scale)


@streams("rms_norm_static_fp8_quant")
def _rms_norm_fp8(
    result: Tensor, input: Tensor, weight: Tensor, scale: Tensor, epsilon: float
) -> None:
    quantize(result, normalized(input, weight, epsilon), scale)


@streams("fused_add_rms_norm_static_fp8_quant", over=("residual",))
def _fused_add_rms_norm_fp8(
    result: Tensor, input: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, epsilon: float
) -> None:
    quantize(result, normalized(added(input, residual), weight, epsilon), scale)


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
    built = normalized(x, weight, epsilon)
    scale_rows(scale, result, built, scale_ub)
    quantize(result, built, scale)


def _as_scaled_mm(
    func: Any, out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, **_: Any
) -> Callable[[int], Any]:
    of_torch = aten._scaled_mm.default if a.is_floating_point() else aten._int_mm.default
    return as_operation(of_torch, (a, b, a_scales, b_scales), out)


@launches("cutlass_scaled_mm", timing=_as_scaled_mm)
def _scaled_mm(
    out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None
) -> None:
    rows = a.float() * over_blocks(
        a_scales.view(-1, 1) if a_scales.dim() < 2 else a_scales, a.shape
    )
    columns = b.float() * over_blocks(
        b_scales.view(1, -1) if b_scales.dim() < 2 else b_scales, b.shape
    )
    result = rows @ columns
    out.copy_(result if bias is None else result + bias.float())


@launches("cutlass_scaled_mm_azp", timing=_as_scaled_mm)
def _scaled_mm_azp(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    azp_adj: Tensor,
    azp: Tensor | None,
    bias: Tensor | None,
) -> None:
    # ``azp_adj`` are the sums of the columns of ``b``, times all rows' zero if they share it.
    less = azp_adj.double().view(1, -1)
    if azp is not None:
        less = less * azp.double().view(-1, 1)
    wide = (a.double() @ b.double() - less) * a_scales.double().view(-1, 1)
    result = wide * b_scales.double().view(1, -1)
    out.copy_(result if bias is None else result + bias.double())


_FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""E2M1's numbers, by their lower three bits; the fourth is the sign."""
_FP4_GROUP = 16
"""Numbers of NVFP4 that share a scale in E4M3."""


def to_fp4(x: Tensor) -> Tensor:
    """Return pairs of numbers as bytes of E2M1, rounded to the nearest, to even between two."""
    between = (_FP4[1:] + _FP4[:-1]) / 2
    size = x.abs()
    up = torch.bucketize(size, between, right=True)
    down = torch.bucketize(size, between)
    codes = torch.where(up % 2 == 0, up, down) | (torch.signbit(x).long() << 3)
    pairs = codes.unflatten(-1, (-1, 2))
    return (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)


def of_fp4(pairs: Tensor) -> Tensor:
    """Return the numbers of :func:`to_fp4`, in float32."""
    codes = torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2).long()
    return _FP4[codes & 7] * torch.where(codes & 8 > 0, -1.0, 1.0)


def swizzled(scales: Tensor) -> Tensor:
    """Return scales ``(rows, groups)`` as the tensor cores read them: tiles of 128 rows by 4.

    Source: PTX ISA, ``tcgen05.mma`` with block scaling, layout of scale factors.
    """
    rows, groups = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    wide = scales.new_zeros(rows, groups)
    wide[: scales.shape[0], : scales.shape[1]] = scales
    tiles = wide.view(rows // 128, 4, 32, groups // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, groups)


def unswizzled(scales: Tensor, rows: int, groups: int) -> Tensor:
    """Return the scales of :func:`swizzled`."""
    high, wide = -(-rows // 128) * 128, -(-groups // 4) * 4
    tiles = scales.view(high // 128, wide // 4, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(high, wide)[:rows, :groups]


def _fp4_results(input: Tensor, is_sf_swizzled_layout: bool, **_: Any) -> tuple[Tensor, Tensor]:
    rows, k = input.numel() // input.shape[-1], input.shape[-1]
    groups = k // _FP4_GROUP
    if is_sf_swizzled_layout:
        # Four scales of one byte are a word.
        shape, dtype = (-(-rows // 128) * 128, -(-groups // 4)), torch.int32
    else:
        shape, dtype = (rows, groups), torch.uint8
    return (
        input.new_empty(rows, k // 2, dtype=torch.uint8),
        input.new_empty(shape, dtype=dtype),
    )


def _to_nvfp4(
    output: Tensor, output_scale: Tensor, x: Tensor, by: Tensor, is_swizzled: bool
) -> None:
    groups = x.float().reshape(-1, x.shape[-1]).unflatten(-1, (-1, _FP4_GROUP))
    most = torch.finfo(torch.float8_e4m3fn).max
    scales = (groups.abs().amax(-1) / 6 * by.float()).clamp(max=most).to(torch.float8_e4m3fn)
    wide = scales.float() / by.float()
    tensor = torch.where(wide.unsqueeze(-1) > 0, groups / wide.unsqueeze(-1), 0.0)
    output.copy_(to_fp4(tensor.clamp(-6, 6).flatten(-2)).view(output.shape))
    stored = scales.view(torch.uint8)
    of_bytes = swizzled(stored) if is_swizzled else stored
    output_scale.view(torch.uint8).copy_(of_bytes.view(output_scale.view(torch.uint8).shape))


@makes("scaled_fp4_quant", result=_fp4_results)
def _fp4_quant(
    output: Tensor,
    output_scale: Tensor,
    /,
    input: Tensor,
    input_scale: Tensor,
    is_sf_swizzled_layout: bool,
) -> None:
    _to_nvfp4(output, output_scale, input, input_scale, is_sf_swizzled_layout)


@streams("scaled_fp4_quant.out")
def _fp4_quant_out(
    input: Tensor,
    input_scale: Tensor,
    is_sf_swizzled_layout: bool,
    output: Tensor,
    output_scale: Tensor,
) -> None:
    _to_nvfp4(output, output_scale, input, input_scale, is_sf_swizzled_layout)


@streams("silu_and_mul_nvfp4_quant")
def _silu_and_mul_fp4(
    result: Tensor, result_block_scale: Tensor, input: Tensor, input_global_scale: Tensor
) -> None:
    first, second = input.float().chunk(2, -1)
    _to_nvfp4(result, result_block_scale, silu(first) * second, input_global_scale, True)


def _as_fp4_mm(func: Any, out: Tensor, a: Tensor, b: Tensor, **_: Any) -> Callable[[int], Any]:
    pairs = (operand.view(torch.float4_e2m1fn_x2) for operand in (a, b.t()))
    return as_operation(aten._scaled_mm.default, tuple(pairs), out)


@launches("cutlass_scaled_fp4_mm", timing=_as_fp4_mm)
def _scaled_fp4_mm(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    block_scale_a: Tensor,
    block_scale_b: Tensor,
    alpha: Tensor,
) -> None:
    parts = []
    for pairs, scales in ((a, block_scale_a), (b, block_scale_b)):
        numbers = of_fp4(pairs.view(torch.uint8))
        rows, groups = numbers.shape[0], numbers.shape[1] // _FP4_GROUP
        of_groups = unswizzled(scales.view(torch.uint8), rows, groups)
        wide = of_groups.contiguous().view(torch.float8_e4m3fn).float()
        parts.append(numbers * wide.repeat_interleave(_FP4_GROUP, 1))
    out.copy_(parts[0] @ parts[1].t() * alpha.float())


def hadamard(x: Tensor) -> Tensor:
    """Return rows times the Hadamard matrix of their size, a power of two, over its root."""
    size = x.shape[-1]
    wide = x.float()
    for step in range(size.bit_length() - 1):
        first, second = wide.unflatten(-1, (-1, 2, 1 << step)).unbind(-2)
        wide = torch.stack((first + second, first - second), -2).flatten(-3)
    return wide / size**0.5


@makes("hadacore_transform", result=lambda x, inplace, **_: x if inplace else torch.empty_like(x))
def _hadacore(out: Tensor, /, x: Tensor, inplace: bool) -> None:
    out.copy_(hadamard(x))
