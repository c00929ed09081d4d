"""Operators of SGLang's kernels whose arguments have other names than those of vLLM's.

Source: the references in ``sgl-kernel/tests``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    OperatorAsked,
    as_product,
    as_routing,
    defines,
    launches,
    makes,
    streams,
)
from kernbench.torch_bridge.replaced.extension_modules.dense import added, normalized
from kernbench.torch_bridge.replaced.extension_modules.experts import choose_in_groups
from kernbench.torch_bridge.replaced.extension_modules.quantized import (
    in_groups,
    over_blocks,
    quantize,
    scale_all,
    scale_rows,
)


def _norms(prefix: str, more: float) -> None:
    """Define norms whose weights are so much larger than what they are given."""

    def norm(output: Tensor, input: Tensor, weight: Tensor, eps: float, enable_pdl: bool) -> None:
        output.copy_(normalized(input, (weight.float() + more).to(weight.dtype), eps))

    def of_sum(
        input: Tensor, residual: Tensor, weight: Tensor, eps: float, enable_pdl: bool
    ) -> None:
        wide = (weight.float() + more).to(weight.dtype)
        input.copy_(normalized(added(input, residual), wide, eps))

    streams(f"{prefix}rmsnorm")(norm)
    streams(f"{prefix}fused_add_rmsnorm", over=("input", "residual"))(of_sum)


_norms("", 0.0)
_norms("gemma_", 1.0)


@streams("sgl_per_tensor_quant_fp8")
def _per_tensor(input: Tensor, output_q: Tensor, output_s: Tensor, is_static: bool) -> None:
    if not is_static:
        scale_all(output_s, output_q, input)
    quantize(output_q, input, output_s)


@streams("sgl_per_token_quant_fp8")
def _per_token(input: Tensor, output_q: Tensor, output_s: Tensor) -> None:
    scale_rows(output_s, output_q, input, None)
    quantize(output_q, input, output_s.view(-1, 1))


@streams("sgl_per_token_group_quant_8bit", "sgl_per_token_group_quant_8bit_v2")
def _per_group(
    input: Tensor,
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    eps: float,
    fp8_min: float,
    fp8_max: float,
    scale_ue8m0: bool,
) -> None:
    in_groups(output_q, output_s, input, group_size, least=eps, powers=scale_ue8m0, largest=fp8_max)


def _product_result(mat_a: Tensor, mat_b: Tensor, out_dtype: torch.dtype, **_: Any) -> Tensor:
    return mat_a.new_empty(mat_a.shape[0], mat_b.shape[1], dtype=out_dtype)


def _of_matrices(func: Any, out: Tensor, mat_a: Tensor, **_: Any) -> Callable[[int], Any]:
    (m, n), k = out.shape, mat_a.shape[1]
    sizes = ((1, m, n, k),) if m and n and k else ()
    return as_product(func, sizes, mat_a.dtype, out.dtype)


@makes(
    *("fp8_scaled_mm", "int8_scaled_mm", "fp8_blockwise_scaled_mm"),
    result=_product_result,
    timing=_of_matrices,
)
def _scaled_mm(
    out: Tensor,
    /,
    mat_a: Tensor,
    mat_b: Tensor,
    scales_a: Tensor,
    scales_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> None:
    by_row = scales_a.view(-1, 1) if scales_a.numel() == mat_a.shape[0] else scales_a
    by_column = scales_b.view(1, -1) if scales_b.numel() == mat_b.shape[1] else scales_b
    rows = mat_a.float() * over_blocks(by_row.float(), mat_a.shape)
    columns = mat_b.float() * over_blocks(by_column.float(), mat_b.shape)
    result = rows @ columns
    out.copy_(result if bias is None else result + bias.float())


def _of_batch(func: Any, rows: Tensor, out: Tensor) -> Callable[[int], Any]:
    *batch, m, n = out.shape
    return as_product(func, ((prod(batch), m, n, rows.shape[-1]),), rows.dtype, out.dtype)


@launches(
    "bmm_fp8",
    timing=lambda func, **named: _of_batch(func, named["A"], named["D"]),
    ignores=("workspace_buffer", "cublas_handle"),
)
def _bmm(
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    D: Tensor,  # noqa: N803
    A_scale: Tensor,  # noqa: N803
    B_scale: Tensor,  # noqa: N803
) -> None:
    D.copy_(A.float() @ B.float() * A_scale * B_scale)


@launches(
    *("dsv3_router_gemm", "dsv3_fused_a_gemm", "fp32_router_gemm"),
    timing=lambda func, output, mat_a, **_: _of_batch(func, mat_a, output),
    ignores=("enable_pdl",),
)
def _router(output: Tensor, mat_a: Tensor, mat_b: Tensor) -> None:
    # The router's weights are rows; those before the latent projections are columns.
    turned = mat_b.shape[0] != mat_a.shape[1]
    columns = mat_b.float()
    output.copy_(mat_a.float() @ (columns.t() if turned else columns))


@streams("merge_state", "merge_state_v2")
def _merge(
    v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor, s_merged: Tensor
) -> None:
    whole = torch.logaddexp(s_a, s_b)
    parts = [(item - whole).exp().nan_to_num(0.0).unsqueeze(-1) for item in (s_a, s_b)]
    v_merged.copy_(v_a.float() * parts[0] + v_b.float() * parts[1])
    s_merged.copy_(whole)


@streams("concat_mla_k")
def _concat_k(k: Tensor, k_nope: Tensor, k_rope: Tensor) -> None:
    k.copy_(torch.cat((k_nope, k_rope.expand(*k_nope.shape[:-1], -1)), -1))


@streams("concat_mla_absorb_q")
def _concat_q(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(torch.cat((a, b), -1))


def _stored_bytes(k: Tensor, v: Tensor, **_: Any) -> tuple[int, int]:
    return num_bytes((k, v)), num_bytes((k, v))


@streams("store_kv_cache", moves=_stored_bytes, into=("k_cache", "v_cache"))
def _store(k_cache: Tensor, v_cache: Tensor, out_loc: Tensor, k: Tensor, v: Tensor) -> None:
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache[out_loc.long()] = new.view(-1, *cache.shape[1:]).to(cache.dtype)


@streams("moe_sum_reduce", into=("output",))
def _sum(input: Tensor, output: Tensor, routed_scaling_factor: float) -> None:
    output.copy_(input.float().sum(1) * routed_scaling_factor)


def _gate_shapes(input: Tensor, topk: int, **_: Any) -> list[Tensor]:
    shape = input.shape[0], topk
    return [
        input.new_empty(shape, dtype=torch.float32),
        input.new_empty(shape, dtype=torch.int32),
    ]


@defines("moe_fused_gate", shapes=_gate_shapes)
def _gate(
    asked: OperatorAsked,
    input: Tensor,
    bias: Tensor,
    num_expert_group: int,
    topk_group: int,
    topk: int,
    num_fused_shared_experts: int,
    routed_scaling_factor: float,
    apply_routed_scaling_factor_on_output: bool,
) -> list[Tensor]:
    weights, ids = _gate_shapes(input, topk)
    chosen = topk - num_fused_shared_experts
    by = routed_scaling_factor if apply_routed_scaling_factor_on_output else 1.0

    def compute(input: Tensor, bias: Tensor, weights: Tensor, ids: Tensor) -> None:
        scores = input.float().sigmoid()
        at = choose_in_groups(scores + bias.float(), num_expert_group, topk_group, chosen)
        result = scores.gather(1, at)
        total = result.sum(-1, keepdim=True)
        ids[:, :chosen] = at.to(ids.dtype)
        weights[:, :chosen] = result / total * by
        if num_fused_shared_experts:
            # Shared experts come behind the others, with the share of all that is routed.
            ids[:, chosen:] = torch.arange(num_fused_shared_experts, dtype=ids.dtype) + len(bias)
            weights[:, chosen:] = by / routed_scaling_factor

    as_routing(asked, compute, input, ids, (input, bias, weights, ids), (weights, ids))
    return [weights, ids]


def _limits(of_rows: Tensor | None, of_all: float) -> Any:
    return of_all if of_rows is None else of_rows.unsqueeze(1)


def _kept_top_k(probs: Tensor, of_rows: Tensor | None, of_all: float) -> Tensor:
    ranks = probs.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return ranks < _limits(of_rows, of_all)


def _kept_top_p(probs: Tensor, of_rows: Tensor | None, of_all: float) -> Tensor:
    """Return the fewest largest probabilities whose sum is at least a share."""
    sort = probs.float().sort(dim=-1, descending=True, stable=True)
    before = sort.values.cumsum(-1) - sort.values
    kept = before < _limits(of_rows, of_all)
    return torch.zeros_like(kept).scatter_(-1, sort.indices, kept)


def _renormalized(probs: Tensor, kept: Tensor) -> Tensor:
    left = probs.float().where(kept, 0.0)
    return left / left.sum(-1, keepdim=True)


@streams("top_k_renorm_probs")
def _top_k_renorm(
    probs: Tensor, renorm_probs: Tensor, maybe_top_k_arr: Tensor | None, top_k_val: int
) -> None:
    renorm_probs.copy_(_renormalized(probs, _kept_top_k(probs, maybe_top_k_arr, top_k_val)))


@streams("top_p_renorm_probs")
def _top_p_renorm(
    probs: Tensor, renorm_probs: Tensor, maybe_top_p_arr: Tensor | None, top_p_val: float
) -> None:
    renorm_probs.copy_(_renormalized(probs, _kept_top_p(probs, maybe_top_p_arr, top_p_val)))


@streams("top_k_mask_logits", into=("mask_logits",))
def _top_k_mask(
    logits: Tensor, mask_logits: Tensor, maybe_top_k_arr: Tensor | None, top_k_val: int
) -> None:
    kept = _kept_top_k(logits, maybe_top_k_arr, top_k_val)
    mask_logits.copy_(logits.masked_fill(~kept, float("-inf")))


@streams("apply_token_bitmask_inplace_cuda", into=("logits",), over=("logits",))
def _bitmask(logits: Tensor, bitmask: Tensor, indices: Tensor | None = None) -> None:
    bits = bitmask.unsqueeze(-1) >> torch.arange(32) & 1
    allowed = bits.flatten(1)[:, : logits.shape[1]].bool()
    rows = torch.arange(len(allowed)) if indices is None else indices.long()
    logits[rows] = logits[rows].masked_fill(~allowed[: len(rows)], float("-inf"))
