"""FlashAttention as engines build it, over pages of keys and values, and the merging of its parts.

Source: ``vllm_flash_attn/flash_attn_interface.py``; ``merge_attn_states`` by "FlashInfer", section
2.2 (Ye et al., 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernbench.library_kernels import attention_kernels, variant_names
from kernbench.torch_bridge.base.operations import describe
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs.attention import FlashCall
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    defines,
    streams,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_calls import (
    Lengths,
    between,
    call_of,
    kernel_of,
    launch,
    of_each,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_operations import attend_sequences, pages
from kernbench.torch_bridge.replaced.package_kernels.flash_values import FlashOptions, attend

_LARGEST_METADATA = 4
"""Integers that FlashAttention-3's scheduler keeps of a sequence."""


def _results(call: OperatorCall) -> tuple[Tensor, Tensor]:
    q, out = call.q, call.out
    if out is None:
        dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype
        out = q.new_empty((*q.shape[:-1], call.v.shape[-1]), dtype=dtype)
    return out, q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _varlen(
    call: OperatorCall,
    generation: int,
    table: Tensor | None,
    scales: Sequence[Tensor | None] = (),
    alibi: Tensor | None = None,
    of_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    q, k, v, name = call.q, call.k, call.v, describe(call.func).name
    ends_q, ends_k, used = call.cu_seqlens_q, call.cu_seqlens_k, call.seqused_k
    if ends_q is None or (ends_k is None and (used is None or table is None)):
        raise UnsupportedTorchError(
            f"{name} without cu_seqlens_q, and cu_seqlens_k or pages with seqused_k: kernbench "
            "defines attention of sequences of own lengths; pass the sums of lengths"
        )
    head_dim = q.shape[-1] + (0 if of_values is None else of_values.shape[-1])
    scale = head_dim**-0.5 if call.softmax_scale is None else call.softmax_scale
    flash = FlashOptions(
        scale=scale,
        causal=call.is_causal,
        left=call.window_size_left,
        right=call.window_size_right,
        softcap=call.softcap,
    )
    out, lse = _results(call)

    def compute(
        q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Any, table: Any, used: Any,
        alibi: Any, of_values: Any, out: Tensor, lse: Tensor, *scales: Any,
    ) -> None:  # fmt: skip
        attend_sequences(
            q, k, v, ends_q, ends_k, table, used, alibi, flash, out, lse, scales or (None,) * 3,
            of_values,
        )  # fmt: skip

    of_keys = (
        of_each(used, ends_q.numel() - 1, call.max_seqlen_k or k.shape[0])
        if ends_k is None or used is not None
        else between(ends_k, k.shape[0])
    )
    kind = kernel_of(call.max_seqlen_q or q.shape[0])
    kinds = ("paged", kind) if kind == "forward" and table is not None else (kind,)
    names = [
        variant
        for g in (generation, 2)
        for name in kinds
        for variant in variant_names(f"flash{g}_{name}", q.element_size() == 1, flash.left >= 0)
    ]
    library = attention_kernels(current().session.run.machine.spec.kernel_library or "")
    kernel = next((kernel for kernel in names if kernel in library), names[-1])
    sizes = {"head_dim": head_dim, "value_dim": v.shape[-1]}
    flash_call = call_of(name, kernel, q, k, flash, **sizes)
    lengths = Lengths(between(ends_q, q.shape[0]), of_keys)
    operands = (q, k, v, ends_q, ends_k, table, used, alibi, of_values, out, lse, *scales)
    launch(call.func, compute, operands, (out, lse), flash_call, lengths)
    return out, lse


@defines(
    *("_vllm_fa3_C::fwd", "sgl_kernel::fwd", "flash_ops::fwd"),
    takes=(
        "q k v out cu_seqlens_q cu_seqlens_k seqused_k max_seqlen_q max_seqlen_k page_table "
        "q_descale k_descale v_descale softmax_scale is_causal window_size_left "
        "window_size_right softcap cp_world_size=1 q_v attention_chunk"
    ),
    shapes=lambda call: [*_results(call), call.q.new_empty(0), call.q.new_empty(0)],
    ignores=(
        "scheduler_metadata num_splits pack_gqa sm_margin is_rotary_interleaved cp_rank "
        "cp_tot_seqused_k"
    ),
)
def _fa3(call: OperatorCall) -> Sequence[Tensor]:
    if call.attention_chunk:
        raise UnsupportedTorchError(
            f"{describe(call.func).name} with attention_chunk={call.attention_chunk}: kernbench "
            "defines attention to all keys, or to a window; use another attention backend"
        )
    if call.cp_world_size > 1:
        raise UnsupportedTorchError(
            f"_vllm_fa3_C.fwd with cp_world_size={call.cp_world_size}: kernbench defines attention "
            "of one rank's own keys; leave decode context parallelism out"
        )
    is_fp8 = call.q.element_size() == 1
    scales = (call.q_descale, call.k_descale, call.v_descale) if is_fp8 else ()
    varlen = _varlen(call, 3, call.page_table, scales, of_values=call.q_v)
    result = [*varlen, call.q.new_empty(0), call.q.new_empty(0)]
    # vLLM's build returns a list.
    return tuple(result) if len(call.func._schema.returns) > 1 else result


def _metadata(call: OperatorCall) -> Tensor:
    return call.seqused_k.new_zeros(_LARGEST_METADATA * call.batch_size + 1, dtype=torch.int32)


defines(
    "_vllm_fa3_C::get_scheduler_metadata",
    takes="batch_size seqused_k",
    shapes=_metadata,
    ignores=(
        "max_seqlen_q max_seqlen_k num_heads num_heads_k headdim headdim_v qkv_dtype "
        "cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q leftpad_k page_size "
        "max_seqlen_k_new is_causal window_size_left window_size_right has_softcap num_splits "
        "pack_gqa sm_margin"
    ),
)(_metadata)


@defines(
    "_vllm_fa2_C::varlen_fwd",
    takes=(
        "q k v out cu_seqlens_q cu_seqlens_k seqused_k block_table alibi_slopes max_seqlen_q "
        "max_seqlen_k p_dropout softmax_scale is_causal window_size_left window_size_right "
        "softcap"
    ),
    shapes=lambda call: [*_results(call)],
    ignores="zero_tensors return_softmax num_splits",
)
def _fa2(call: OperatorCall) -> list[Tensor]:
    if call.p_dropout:
        raise UnsupportedTorchError(
            f"_vllm_fa2_C.varlen_fwd with p_dropout={call.p_dropout}: kernbench defines it "
            "without; use flash_attn for training"
        )
    return [*_varlen(call, 2, call.block_table, alibi=call.alibi_slopes)]


def _latent(
    call: OperatorCall,
    queries_of: tuple[Tensor, ...],
    cache: Tensor,
    used: Tensor,
    table: Tensor,
    results: tuple[Tensor, Tensor],
    scale: float,
    causal: bool,
    scales: Sequence[Tensor | None] = (None, None),
) -> None:
    """Run attention of queries ``(batch, queries, heads, size)`` to latent vectors in pages.

    Queries are the parts of ``queries_of``, one after another; results are ``(batch, queries,
    heads, values)``, as long as the first elements of vectors, and ``(batch, heads, queries)``.
    """
    batch, queries, heads, values = results[0].shape
    size, dtype = cache.shape[-1], queries_of[0].dtype
    count = len(queries_of)
    options = FlashOptions(scale=scale, causal=causal)

    def compute(*value: Any) -> None:
        q = torch.cat(value[:count], -1)
        cache, used, table, out, lse, *by = value[count:]
        for number, length in enumerate(used.tolist()):
            keys = pages(cache.view(*cache.shape[:2], 1, size), table[number : number + 1], length)
            parts = [
                part.float() if item is None else part.float() * item.float()
                for part, item in zip((q[number : number + 1], keys), by, strict=True)
            ]
            pair = attend(parts[0], parts[1], parts[1][..., :values], None, options)
            out[number], lse[number] = pair[0][0].to(out.dtype), pair[1][0]

    library = attention_kernels(current().session.run.machine.spec.kernel_library or "")
    flash_call = FlashCall(
        name=describe(call.func).name,
        kernel="flash3_decode" if "flash3_decode" in library else "flash2_decode",
        heads=heads,
        kv_heads=1,
        head_dim=size,
        dtype=dtype,
        causal=causal,
        value_dim=values,
    )
    lengths = Lengths(
        lambda: (queries,) * batch, of_each(used, batch, table.shape[1] * cache.shape[1])
    )
    operands = (*queries_of, cache, used, table, *results, *scales)
    launch(call.func, compute, operands, results, flash_call, lengths)


def _latent_results(call: OperatorCall, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    q = call.q
    batch, queries, heads, _ = q.shape
    if out is None:
        dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype
        out = q.new_empty((batch, queries, heads, call.head_size_v), dtype=dtype)
    return out, q.new_empty((batch, heads, queries), dtype=torch.float32)


def _flash_mla_results(call: OperatorCall) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    tiles = call.tile_scheduler_metadata, call.num_splits
    return *_latent_results(call, call.out_), *tiles


@defines(
    "dense_decode_fwd",
    takes=(
        "q kcache head_size_v seqlens_k block_table softmax_scale is_causal "
        "tile_scheduler_metadata num_splits out_"
    ),
    shapes=_flash_mla_results,
)
def _flash_mla(call: OperatorCall) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    results, how = _flash_mla_results(call), (call.softmax_scale, call.is_causal)
    _latent(call, (call.q,), call.kcache, call.seqlens_k, call.block_table, results[:2], *how)
    return results


@defines(
    "fwd_kvcache_mla",
    "fwd_kvcache_mla_fp8",
    takes="q kcache head_size_v seqlens_k block_table softmax_scale is_causal descale_q descale_k",
    shapes=lambda call: [*_latent_results(call)],
    ignores="tile_scheduler_metadata num_splits",
)
def _flash_mla_of_lists(call: OperatorCall) -> list[Tensor]:
    results, how = _latent_results(call), (call.softmax_scale, call.is_causal)
    scales = call.descale_q, call.descale_k
    _latent(call, (call.q,), call.kcache, call.seqlens_k, call.block_table, results, *how, scales)
    return [*results]


def _tiles(call: OperatorCall) -> list[Tensor]:
    lengths, numbers = call.seqlens_k, {"dtype": torch.int32}
    return [
        lengths.new_zeros((1, _LARGEST_METADATA), **numbers),
        lengths.new_zeros(lengths.numel() + 1, **numbers),
    ]


defines(
    "get_mla_decoding_metadata",
    "get_mla_decoding_metadata_dense_fp8",
    takes="seqlens_k",
    shapes=_tiles,
    ignores="num_heads_per_head_k num_q_tokens_per_head_k num_heads_k h_k h_q is_fp8_kvcache topk",
)(_tiles)


@defines(
    "sm100_cutlass_mla_decode",
    "cutlass_mla_decode",
    takes="out q_nope q_pe kv_c_and_k_pe_cache seq_lens page_table lse scale=1.0 sm_scale",
    ignores="workspace num_kv_splits",
)
def _cutlass_mla(call: OperatorCall) -> None:
    q, lse = (call.q_nope.unsqueeze(1), call.q_pe.unsqueeze(1)), call.lse
    if lse is None or not lse.numel():
        lse = call.q_nope.new_empty(call.q_nope.shape[:2], dtype=torch.float32)
    results = call.out.unsqueeze(1), lse.unsqueeze(2)
    scale = call.scale if call.sm_scale is None else call.sm_scale
    pages_of = call.kv_c_and_k_pe_cache, call.seq_lens, call.page_table
    _latent(call, q, *pages_of, results, scale, False)


@defines(
    "sm100_cutlass_mla_get_workspace_size",
    "cutlass_mla_get_workspace_size",
    takes="max_seq_len num_batches sm_count num_kv_splits",
    on_host=True,
    ignores="page_size",
)
def _cutlass_mla_workspace(call: OperatorCall) -> int:
    # Parts of results in float32, one for each multiprocessor and 128 heads.
    return 4 * 128 * 512 * call.sm_count


@streams(
    "merge_attn_states",
    takes=(
        "output output_lse prefix_output prefix_lse suffix_output suffix_lse "
        "prefill_tokens_with_context"
    ),
)
def _merge(call: OperatorCall) -> None:
    # Sums of no keys may be infinite of either sign.
    before, after = (
        item.masked_fill(item.isposinf(), float("-inf"))
        for item in (call.prefix_lse, call.suffix_lse)
    )
    if call.prefill_tokens_with_context is not None:
        before = before.clone()
        before[:, call.prefill_tokens_with_context :] = float("-inf")
    whole = torch.logaddexp(before, after)
    first, second = (
        (item - whole).exp().nan_to_num(0.0).t().unsqueeze(-1) for item in (before, after)
    )
    prefix = call.prefix_output.float().nan_to_num(0.0) * first
    call.output.copy_(prefix + call.suffix_output.float() * second)
    if call.output_lse is not None:
        call.output_lse.copy_(whole)
