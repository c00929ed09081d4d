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
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    as_operation,
    as_product,
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


def _twice(call: OperatorCall) -> tuple[int, int]:
    # The scale is found first, and the input read again.
    return 2 * num_bytes((call.input,)), num_bytes((call.result,))


@streams(
    "static_scaled_fp8_quant",
    "static_scaled_int8_quant",
    takes="result input scale group_shape",
)
def _static(call: OperatorCall) -> None:
    quantize(call.result, call.input, call.scale)


@streams("dynamic_scaled_fp8_quant", takes="result input scale", moves=_twice)
def _dynamic_fp8(call: OperatorCall) -> None:
    scale_all(call.scale, call.result, call.input)
    quantize(call.result, call.input, call.scale)


@streams(
    "dynamic_scaled_int8_quant",
    "dynamic_per_token_scaled_fp8_quant",
    takes="result input scale scale_ub",
)
def _dynamic_rows(call: OperatorCall) -> None:
    scale_rows(call.scale, call.result, call.input, call.scale_ub)
    quantize(call.result, call.input, call.scale)


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


@streams(
    "per_token_group_fp8_quant",
    "per_token_group_quant_int8",
    "sgl_per_token_group_quant_8bit",
    "sgl_per_token_group_quant_8bit_v2",
    takes=(
        "input output_q output_s group_size eps fp8_min fp8_max int8_min int8_max "
        "scale_ue8m0=False dummy_is_scale_transposed dummy_is_tma_aligned"
    ),
)
def _groups(call: OperatorCall) -> None:
    how = {"least": call.eps, "powers": call.scale_ue8m0, "largest": call.fp8_max or call.int8_max}
    in_groups(call.output_q, call.output_s, call.input, call.group_size, **how)


def _normalized(call: OperatorCall) -> Tensor:
    x = call.input if call.residual is None else added(call.input, call.residual)
    return normalized(x, call.weight, call.epsilon)


@streams(
    "rms_norm_per_block_quant",
    takes="result input weight scale epsilon scale_ub residual group_size is_scale_transposed",
    over=("residual",),
)
def _rms_norm_groups(call: OperatorCall) -> None:
    in_groups(call.result, call.scale, _normalized(call), call.group_size, most=call.scale_ub)


def _gated(x: Tensor) -> Tensor:
    """Return the SiLU of rows' first half times their second, in float32."""
    gate, up = x.float().chunk(2, -1)
    return silu(gate) * up


@streams(
    "silu_and_mul_per_block_quant", takes="out input scales group_size scale_ub is_scale_transposed"
)
def _silu_and_mul_groups(call: OperatorCall) -> None:
    in_groups(call.out, call.scales, _gated(call.input), call.group_size, most=call.scale_ub)


@streams(
    "situ_and_mul_quant",
    takes=("out scale input beta=1.0 linear_beta=-1.0 group_size=0 num_valid_tokens topk=1"),
)
def _situ_and_mul_quant(call: OperatorCall) -> None:
    valid = call.num_valid_tokens
    rows = len(call.input) if valid is None else int(valid) * call.topk
    gate, up = call.input[:rows].float().chunk(2, -1)
    x = situ(gate, up, call.beta, call.linear_beta)
    call.scale.fill_(1.0)
    in_groups(call.out[:rows], call.scale[:rows], x, call.group_size or x.shape[-1])


@streams("persistent_masked_m_silu_mul_quant", takes="input counts y_q y_s use_ue8m0")
def _silu_of_experts(call: OperatorCall) -> None:
    for expert, count in enumerate(call.counts.tolist()):
        own = expert, slice(count)
        x = _gated(call.input[own])
        in_groups(call.y_q[own], call.y_s[own], x, 128, powers=call.use_ue8m0)


@streams("silu_and_mul_quant", takes="result input scale")
def _silu_and_mul_quant(call: OperatorCall) -> None:
    quantize(call.result, _gated(call.input), call.scale)


@streams(
    "rms_norm_static_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    takes="result input residual weight scale epsilon",
    over=("residual",),
)
def _rms_norm_fp8(call: OperatorCall) -> None:
    quantize(call.result, _normalized(call), call.scale)


@streams(
    "rms_norm_dynamic_per_token_quant",
    takes="result input weight scale epsilon scale_ub residual",
    over=("residual",),
)
def _rms_norm_rows(call: OperatorCall) -> None:
    x = _normalized(call)
    scale_rows(call.scale, call.result, x, call.scale_ub)
    quantize(call.result, x, call.scale)


def _as_scaled_mm(call: OperatorCall) -> Callable[[int], Any]:
    (m, k), n = call.a.shape, call.b.shape[1]
    has_blocks = call.a_scales.numel() not in (1, m) or call.b_scales.numel() not in (1, n)
    sizes = ((1, m, n, k),) if m and n and k else ()
    library = "blocks" if has_blocks else "vllm"
    return as_product(call.func, sizes, call.a.dtype, call.out.dtype, library=library)


def _vector(scales: Tensor, *shape: int) -> Tensor:
    return scales.view(shape) if scales.dim() < 2 else scales


@launches("cutlass_scaled_mm", takes="out a b a_scales b_scales bias", timing=_as_scaled_mm)
def _scaled_mm(call: OperatorCall) -> None:
    rows = call.a.float() * over_blocks(_vector(call.a_scales, -1, 1), call.a.shape)
    columns = call.b.float() * over_blocks(_vector(call.b_scales, 1, -1), call.b.shape)
    result = rows @ columns
    call.out.copy_(result if call.bias is None else result + call.bias.float())


@launches(
    "cutlass_scaled_mm_azp",
    takes="out a b a_scales b_scales azp_adj azp bias",
    timing=_as_scaled_mm,
)
def _scaled_mm_azp(call: OperatorCall) -> None:
    # ``azp_adj`` are the sums of the columns of ``b``, times all rows' zero if they share it.
    less = call.azp_adj.double().view(1, -1)
    if call.azp is not None:
        less = less * call.azp.double().view(-1, 1)
    wide = (call.a.double() @ call.b.double() - less) * call.a_scales.double().view(-1, 1)
    result = wide * call.b_scales.double().view(1, -1)
    call.out.copy_(result if call.bias is None else result + call.bias.double())


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


def _fp4_results(call: OperatorCall) -> tuple[Tensor, Tensor]:
    input = call.input
    rows, k = input.numel() // input.shape[-1], input.shape[-1]
    groups = k // _FP4_GROUP
    if call.is_sf_swizzled_layout:
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


@makes("scaled_fp4_quant", takes="input input_scale is_sf_swizzled_layout", result=_fp4_results)
def _fp4_quant(output: Tensor, output_scale: Tensor, call: OperatorCall) -> None:
    _to_nvfp4(output, output_scale, call.input, call.input_scale, call.is_sf_swizzled_layout)


@streams(
    "scaled_fp4_quant.out", takes="input input_scale is_sf_swizzled_layout output output_scale"
)
def _fp4_quant_out(call: OperatorCall) -> None:
    _to_nvfp4(
        call.output, call.output_scale, call.input, call.input_scale, call.is_sf_swizzled_layout
    )


@streams("silu_and_mul_nvfp4_quant", takes="result result_block_scale input input_global_scale")
def _silu_and_mul_fp4(call: OperatorCall) -> None:
    x = _gated(call.input)
    _to_nvfp4(call.result, call.result_block_scale, x, call.input_global_scale, True)


def _as_fp4_mm(call: OperatorCall) -> Callable[[int], Any]:
    pairs = (operand.view(torch.float4_e2m1fn_x2) for operand in (call.a, call.b.t()))
    return as_operation(aten._scaled_mm.default, tuple(pairs), call.out)


@launches(
    "cutlass_scaled_fp4_mm", takes="out a b block_scale_a block_scale_b alpha", timing=_as_fp4_mm
)
def _scaled_fp4_mm(call: OperatorCall) -> None:
    parts = []
    for pairs, scales in ((call.a, call.block_scale_a), (call.b, call.block_scale_b)):
        numbers = of_fp4(pairs.view(torch.uint8))
        rows, groups = numbers.shape[0], numbers.shape[1] // _FP4_GROUP
        of_groups = unswizzled(scales.view(torch.uint8), rows, groups)
        wide = of_groups.contiguous().view(torch.float8_e4m3fn).float()
        parts.append(numbers * wide.repeat_interleave(_FP4_GROUP, 1))
    call.out.copy_(parts[0] @ parts[1].t() * call.alpha.float())


def hadamard(x: Tensor) -> Tensor:
    """Return rows times the Hadamard matrix of their size, a power of two, over its root."""
    size = x.shape[-1]
    wide = x.float()
    for step in range(size.bit_length() - 1):
        first, second = wide.unflatten(-1, (-1, 2, 1 << step)).unbind(-2)
        wide = torch.stack((first + second, first - second), -2).flatten(-3)
    return wide / size**0.5


@makes(
    "hadacore_transform",
    takes="x inplace",
    result=lambda call: call.x if call.inplace else torch.empty_like(call.x),
)
def _hadacore(out: Tensor, call: OperatorCall) -> None:
    out.copy_(hadamard(call.x))
