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
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    as_product,
    as_stream,
    launches,
    makes,
    streams,
)
from kernbench.torch_bridge.replaced.extension_modules.dense import added, normalized
from kernbench.torch_bridge.replaced.extension_modules.experts import (
    choose_in_groups,
    chosen_shapes,
)
from kernbench.torch_bridge.replaced.extension_modules.quantized import (
    over_blocks,
    quantize,
    scale_all,
    scale_rows,
)


def _norms(prefix: str, more: float) -> None:
    """Define norms whose weights are so much larger than what they are given."""

    def wide(call: OperatorCall) -> Any:
        return (call.weight.float() + more).to(call.weight.dtype)

    @streams(f"{prefix}rmsnorm", takes="output input weight eps enable_pdl")
    def norm(call: OperatorCall) -> None:
        call.output.copy_(normalized(call.input, wide(call), call.eps))

    @streams(
        f"{prefix}fused_add_rmsnorm",
        takes="input residual weight eps enable_pdl",
        over=("input", "residual"),
    )
    def of_sum(call: OperatorCall) -> None:
        call.input.copy_(normalized(added(call.input, call.residual), wide(call), call.eps))


_norms("", 0.0)
_norms("gemma_", 1.0)


@streams("sgl_per_tensor_quant_fp8", takes="input output_q output_s is_static")
def _per_tensor(call: OperatorCall) -> None:
    if not call.is_static:
        scale_all(call.output_s, call.output_q, call.input)
    quantize(call.output_q, call.input, call.output_s)


@streams("sgl_per_token_quant_fp8", takes="input output_q output_s")
def _per_token(call: OperatorCall) -> None:
    scale_rows(call.output_s, call.output_q, call.input, None)
    quantize(call.output_q, call.input, call.output_s.view(-1, 1))


def _of_matrices(call: OperatorCall, out: Tensor) -> Callable[[int], Any]:
    (m, n), k = out.shape, call.mat_a.shape[1]
    sizes = ((1, m, n, k),) if m and n and k else ()
    library = "blocks" if "blockwise" in str(call.func) else "sglang"
    return as_product(call.func, sizes, call.mat_a.dtype, out.dtype, library=library)


@makes(
    *("fp8_scaled_mm", "int8_scaled_mm", "fp8_blockwise_scaled_mm"),
    takes="mat_a mat_b scales_a scales_b out_dtype bias",
    result=lambda call: call.mat_a.new_empty(
        call.mat_a.shape[0], call.mat_b.shape[1], dtype=call.out_dtype
    ),
    timing=_of_matrices,
)
def _scaled_mm(out: Tensor, call: OperatorCall) -> None:
    a, b, by_row, by_column = call.mat_a, call.mat_b, call.scales_a, call.scales_b
    by_row = by_row.view(-1, 1) if by_row.numel() == a.shape[0] else by_row
    by_column = by_column.view(1, -1) if by_column.numel() == b.shape[1] else by_column
    rows = a.float() * over_blocks(by_row.float(), a.shape)
    result = rows @ (b.float() * over_blocks(by_column.float(), b.shape))
    out.copy_(result if call.bias is None else result + call.bias.float())


def _of_batch(func: Any, rows: Tensor, out: Tensor) -> Callable[[int], Any]:
    *batch, m, n = out.shape
    return as_product(func, ((prod(batch), m, n, rows.shape[-1]),), rows.dtype, out.dtype)


@launches(
    "bmm_fp8",
    takes="A B D A_scale B_scale",
    timing=lambda call: _of_batch(call.func, call.A, call.D),
    ignores="workspace_buffer cublas_handle",
)
def _bmm(call: OperatorCall) -> None:
    call.D.copy_(call.A.float() @ call.B.float() * call.A_scale * call.B_scale)


@launches(
    *("dsv3_router_gemm", "dsv3_fused_a_gemm", "fp32_router_gemm"),
    takes="output mat_a mat_b",
    timing=lambda call: _of_batch(call.func, call.mat_a, call.output),
    ignores="enable_pdl",
)
def _router(call: OperatorCall) -> None:
    # The router's weights are rows; those before the latent projections are columns.
    turned = call.mat_b.shape[0] != call.mat_a.shape[1]
    columns = call.mat_b.float()
    call.output.copy_(call.mat_a.float() @ (columns.t() if turned else columns))


@streams("merge_state", "merge_state_v2", takes="v_a s_a v_b s_b v_merged s_merged")
def _merge(call: OperatorCall) -> None:
    whole = torch.logaddexp(call.s_a, call.s_b)
    parts = [(item - whole).exp().nan_to_num(0.0).unsqueeze(-1) for item in (call.s_a, call.s_b)]
    call.v_merged.copy_(call.v_a.float() * parts[0] + call.v_b.float() * parts[1])
    call.s_merged.copy_(whole)


@streams("concat_mla_k", takes="k k_nope k_rope")
def _concat_k(call: OperatorCall) -> None:
    call.k.copy_(torch.cat((call.k_nope, call.k_rope.expand(*call.k_nope.shape[:-1], -1)), -1))


@streams("concat_mla_absorb_q", takes="a b out")
def _concat_q(call: OperatorCall) -> None:
    call.out.copy_(torch.cat((call.a, call.b), -1))


@streams(
    "store_kv_cache",
    takes="k_cache v_cache out_loc k v",
    moves=lambda call: (num_bytes((call.k, call.v)),) * 2,
    into=("k_cache", "v_cache"),
)
def _store(call: OperatorCall) -> None:
    for cache, new in ((call.k_cache, call.k), (call.v_cache, call.v)):
        cache[call.out_loc.long()] = new.view(-1, *cache.shape[1:]).to(cache.dtype)


@streams("moe_sum_reduce", takes="input output routed_scaling_factor", into=("output",))
def _sum(call: OperatorCall) -> None:
    call.output.copy_(call.input.float().sum(1) * call.routed_scaling_factor)


@makes(
    "moe_fused_gate",
    takes=(
        "input bias num_expert_group topk_group topk num_fused_shared_experts "
        "routed_scaling_factor apply_routed_scaling_factor_on_output"
    ),
    result=lambda call: [*chosen_shapes(call.input, call.topk)],
    timing=lambda call, results: as_stream(call.func, (call.input,), results),
    deals="input",
)
def _gate(weights: Tensor, ids: Tensor, call: OperatorCall) -> None:
    scores, shared = call.input.float().sigmoid(), call.num_fused_shared_experts
    chosen = call.topk - shared
    by = call.routed_scaling_factor if call.apply_routed_scaling_factor_on_output else 1.0
    groups = call.num_expert_group, call.topk_group
    at = choose_in_groups(scores + call.bias.float(), *groups, chosen)
    result = scores.gather(1, at)
    ids[:, :chosen] = at.to(ids.dtype)
    weights[:, :chosen] = result / result.sum(-1, keepdim=True) * by
    if shared:
        # Shared experts come behind the others, with the share of all that is routed.
        ids[:, chosen:] = torch.arange(shared, dtype=ids.dtype) + len(call.bias)
        weights[:, chosen:] = by / call.routed_scaling_factor


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


@streams("top_k_renorm_probs", takes="probs renorm_probs maybe_top_k_arr top_k_val")
def _top_k_renorm(call: OperatorCall) -> None:
    kept = _kept_top_k(call.probs, call.maybe_top_k_arr, call.top_k_val)
    call.renorm_probs.copy_(_renormalized(call.probs, kept))


@streams("top_p_renorm_probs", takes="probs renorm_probs maybe_top_p_arr top_p_val")
def _top_p_renorm(call: OperatorCall) -> None:
    kept = _kept_top_p(call.probs, call.maybe_top_p_arr, call.top_p_val)
    call.renorm_probs.copy_(_renormalized(call.probs, kept))


@streams(
    "top_k_mask_logits", takes="logits mask_logits maybe_top_k_arr top_k_val", into=("mask_logits",)
)
def _top_k_mask(call: OperatorCall) -> None:
    kept = _kept_top_k(call.logits, call.maybe_top_k_arr, call.top_k_val)
    call.mask_logits.copy_(call.logits.masked_fill(~kept, float("-inf")))


@streams(
    "apply_token_bitmask_inplace_cuda",
    takes="logits bitmask indices",
    into=("logits",),
    over=("logits",),
)
def _bitmask(call: OperatorCall) -> None:
    bits = call.bitmask.unsqueeze(-1) >> torch.arange(32) & 1
    allowed = bits.flatten(1)[:, : call.logits.shape[1]].bool()
    rows = torch.arange(len(allowed)) if call.indices is None else call.indices.long()
    call.logits[rows] = call.logits[rows].masked_fill(~allowed[: len(rows)], float("-inf"))
