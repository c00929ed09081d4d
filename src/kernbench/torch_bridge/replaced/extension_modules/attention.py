"""FlashAttention as engines build it, over pages of keys and values, and the merging of its parts.

Source: ``vllm_flash_attn/flash_attn_interface.py``; ``merge_attn_states`` by "FlashInfer", section
2.2 (Ye et al., 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernbench.library_kernels import attention_kernels
from kernbench.torch_bridge.base.operations import describe
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs.attention import FlashCall
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    OperatorAsked,
    defines,
    streams,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_caches import pages
from kernbench.torch_bridge.replaced.package_kernels.flash_calls import (
    Lengths,
    between,
    kernel_of,
    launch,
    of_each,
    options_of,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_operations import attend_sequences
from kernbench.torch_bridge.replaced.package_kernels.flash_values import attend

_LARGEST_METADATA = 4
"""Integers that FlashAttention-3's scheduler keeps of a sequence."""


def _results(q: Tensor, v: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    if out is None:
        dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype
        out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype)
    return out, q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _varlen(
    asked: OperatorAsked,
    generation: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    ends_q: Tensor | None,
    ends_k: Tensor | None,
    used: Tensor | None,
    table: Tensor | None,
    alibi: Tensor | None,
    most: tuple[int, int],
    options: tuple[float, float, bool, int, int, float],
    scales: Sequence[Tensor | None],
    of_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    name = describe(asked.func).name
    if ends_q is None or (ends_k is None and (used is None or table is None)):
        raise UnsupportedTorchError(
            f"{name} without cu_seqlens_q, and cu_seqlens_k or pages with seqused_k: kernbench "
            "defines attention of sequences of own lengths; pass the sums of lengths"
        )
    flash = options_of(*options)
    out, lse = _results(q, v, out)

    def compute(
        q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Any, table: Any, used: Any,
        alibi: Any, of_values: Any, out: Tensor, lse: Tensor, *scales: Any,
    ) -> None:  # fmt: skip
        attend_sequences(
            q, k, v, ends_q, ends_k, table, used, alibi, flash, out, lse, scales or (None,) * 3,
            of_values,
        )  # fmt: skip

    count = ends_q.numel() - 1
    of_keys = (
        of_each(used, count, most[1])
        if ends_k is None or used is not None
        else between(ends_k, k.shape[0])
    )
    library = attention_kernels(current().session.run.machine.spec.kernel_library or "")
    kind = kernel_of(most[0])
    kernel = f"flash{generation}_{kind}"
    call = FlashCall(
        name=name,
        kernel=kernel if kernel in library else f"flash2_{kind}",
        heads=q.shape[-2],
        kv_heads=k.shape[-2],
        head_dim=q.shape[-1] + (0 if of_values is None else of_values.shape[-1]),
        dtype=q.dtype,
        causal=flash.causal,
        window=max(flash.left, 0),
        value_dim=v.shape[-1],
    )
    lengths = Lengths(between(ends_q, q.shape[0]), of_keys)
    operands = (q, k, v, ends_q, ends_k, table, used, alibi, of_values, out, lse, *scales)
    launch(asked.func, compute, operands, (out, lse), call, lengths)
    return out, lse


def _fa3_shapes(q: Tensor, v: Tensor, out: Tensor | None, **named: Any) -> list[Tensor]:
    return [*_results(q, v, out), q.new_empty(0), q.new_empty(0)]


@defines(
    *("_vllm_fa3_C::fwd", "sgl_kernel::fwd", "flash_ops::fwd"),
    shapes=_fa3_shapes,
    ignores=(
        *("scheduler_metadata", "num_splits", "pack_gqa", "sm_margin"),
        *("is_rotary_interleaved", "cp_rank", "cp_tot_seqused_k"),
    ),
)
def _fa3(
    asked: OperatorAsked,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    page_table: Tensor | None,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    softmax_scale: float | None,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    cp_world_size: int = 1,
    q_v: Tensor | None = None,
    attention_chunk: int = 0,
) -> Sequence[Tensor]:
    if attention_chunk:
        raise UnsupportedTorchError(
            f"{describe(asked.func).name} with attention_chunk={attention_chunk}: kernbench "
            "defines attention to all keys, or to a window; use another attention backend"
        )
    if cp_world_size > 1:
        raise UnsupportedTorchError(
            f"_vllm_fa3_C.fwd with cp_world_size={cp_world_size}: kernbench defines attention of "
            "one rank's own keys; leave decode context parallelism out"
        )
    size = q.shape[-1] + (0 if q_v is None else q_v.shape[-1])
    scale = size**-0.5 if softmax_scale is None else softmax_scale
    options = 0.0, scale, is_causal, window_size_left, window_size_right, softcap
    scales = (q_descale, k_descale, v_descale) if q.element_size() == 1 else ()
    most = max_seqlen_q or q.shape[0], max_seqlen_k or k.shape[0]
    varlen = _varlen(
        asked, 3, q, k, v, out, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, None, most,
        options, scales, q_v,
    )  # fmt: skip
    result = [*varlen, q.new_empty(0), q.new_empty(0)]
    # vLLM's build returns a list.
    return tuple(result) if len(asked.func._schema.returns) > 1 else result


def _metadata(batch_size: int, seqused_k: Tensor) -> Tensor:
    return seqused_k.new_zeros(_LARGEST_METADATA * batch_size + 1, dtype=torch.int32)


@defines(
    "_vllm_fa3_C::get_scheduler_metadata",
    shapes=_metadata,
    ignores=(
        *("max_seqlen_q", "max_seqlen_k", "num_heads", "num_heads_k", "headdim", "headdim_v"),
        *("qkv_dtype", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_k_new", "seqused_q"),
        *("leftpad_k", "page_size", "max_seqlen_k_new", "is_causal", "window_size_left"),
        *("window_size_right", "has_softcap", "num_splits", "pack_gqa", "sm_margin"),
    ),
)
def _scheduler_metadata(asked: OperatorAsked, batch_size: int, seqused_k: Tensor) -> Tensor:
    return _metadata(batch_size, seqused_k)


@defines(
    "_vllm_fa2_C::varlen_fwd",
    shapes=lambda q, v, out, **named: [*_results(q, v, out)],
    ignores=("zero_tensors", "return_softmax", "num_splits"),
)
def _fa2(
    asked: OperatorAsked,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
    alibi_slopes: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
) -> list[Tensor]:
    if p_dropout:
        raise UnsupportedTorchError(
            f"_vllm_fa2_C.varlen_fwd with p_dropout={p_dropout}: kernbench defines it without; use "
            "flash_attn for training"
        )
    options = 0.0, softmax_scale, is_causal, window_size_left, window_size_right, softcap
    varlen = _varlen(
        asked, 2, q, k, v, out, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, alibi_slopes,
        (max_seqlen_q, max_seqlen_k), options, (),
    )  # fmt: skip
    return [*varlen]


def _latent(
    asked: OperatorAsked,
    queries_of: tuple[Tensor, ...],
    cache: Tensor,
    used: Tensor,
    table: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    scales: Sequence[Tensor | None] = (None, None),
) -> None:
    """Run attention of queries ``(batch, queries, heads, size)`` to latent vectors in pages.

    Queries are the parts of ``queries_of``, one after another; ``out`` is ``(batch, queries, heads,
    values)``, as long as the first elements of vectors; ``lse`` ``(batch, heads, queries)``.
    """
    batch, queries, heads, values = out.shape
    size, dtype = cache.shape[-1], queries_of[0].dtype
    count = len(queries_of)
    options = options_of(0.0, scale, causal, -1, -1, 0.0)

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
    call = FlashCall(
        name=describe(asked.func).name,
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
    operands = (*queries_of, cache, used, table, out, lse, *scales)
    launch(asked.func, compute, operands, (out, lse), call, lengths)


def _latent_results(q: Tensor, head_size_v: int, out_: Tensor | None = None, **_: Any) -> Any:
    batch, queries, heads, _ = q.shape
    dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype
    out = q.new_empty((batch, queries, heads, head_size_v), dtype=dtype) if out_ is None else out_
    return out, q.new_empty((batch, heads, queries), dtype=torch.float32)


@defines(
    "dense_decode_fwd",
    shapes=lambda q, head_size_v, out_, tile_scheduler_metadata, num_splits, **_: (
        *_latent_results(q, head_size_v, out_),
        tile_scheduler_metadata,
        num_splits,
    ),
)
def _flash_mla(
    asked: OperatorAsked,
    q: Tensor,
    kcache: Tensor,
    head_size_v: int,
    seqlens_k: Tensor,
    block_table: Tensor,
    softmax_scale: float,
    is_causal: bool,
    tile_scheduler_metadata: Tensor | None,
    num_splits: Tensor | None,
    out_: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    out, lse = _latent_results(q, head_size_v, out_)
    _latent(asked, (q,), kcache, seqlens_k, block_table, out, lse, softmax_scale, is_causal)
    return out, lse, tile_scheduler_metadata, num_splits


@defines(
    "fwd_kvcache_mla",
    "fwd_kvcache_mla_fp8",
    shapes=lambda q, head_size_v, **_: [*_latent_results(q, head_size_v)],
    ignores=("tile_scheduler_metadata", "num_splits"),
)
def _flash_mla_of_lists(
    asked: OperatorAsked,
    q: Tensor,
    kcache: Tensor,
    head_size_v: int,
    seqlens_k: Tensor,
    block_table: Tensor,
    softmax_scale: float,
    is_causal: bool,
    descale_q: Tensor | None = None,
    descale_k: Tensor | None = None,
) -> list[Tensor]:
    out, lse = _latent_results(q, head_size_v)
    _latent(
        asked, (q,), kcache, seqlens_k, block_table, out, lse, softmax_scale, is_causal,
        (descale_q, descale_k),
    )  # fmt: skip
    return [out, lse]


def _tiles(seqlens_k: Tensor, **_: Any) -> list[Tensor]:
    numbers = {"dtype": torch.int32}
    return [
        seqlens_k.new_zeros((1, _LARGEST_METADATA), **numbers),
        seqlens_k.new_zeros(seqlens_k.numel() + 1, **numbers),
    ]


@defines(
    "get_mla_decoding_metadata",
    "get_mla_decoding_metadata_dense_fp8",
    shapes=_tiles,
    ignores=(
        *("num_heads_per_head_k", "num_q_tokens_per_head_k", "num_heads_k", "h_k", "h_q"),
        *("is_fp8_kvcache", "topk"),
    ),
)
def _mla_metadata(asked: OperatorAsked, seqlens_k: Tensor) -> list[Tensor]:
    return _tiles(seqlens_k)


@defines("sm100_cutlass_mla_decode", "cutlass_mla_decode", ignores=("workspace", "num_kv_splits"))
def _cutlass_mla(
    asked: OperatorAsked,
    out: Tensor,
    q_nope: Tensor,
    q_pe: Tensor,
    kv_c_and_k_pe_cache: Tensor,
    seq_lens: Tensor,
    page_table: Tensor,
    lse: Tensor | None = None,
    scale: float = 1.0,
    sm_scale: float | None = None,
) -> None:
    q = q_nope.unsqueeze(1), q_pe.unsqueeze(1)
    if lse is None or not lse.numel():
        lse = q_nope.new_empty(q_nope.shape[:2], dtype=torch.float32)
    _latent(
        asked, q, kv_c_and_k_pe_cache, seq_lens, page_table, out.unsqueeze(1), lse.unsqueeze(2),
        scale if sm_scale is None else sm_scale, False,
    )  # fmt: skip


@defines(
    "sm100_cutlass_mla_get_workspace_size", "cutlass_mla_get_workspace_size", on_host=True,
    ignores=("page_size",),
)  # fmt: skip
def _cutlass_mla_workspace(
    asked: OperatorAsked, max_seq_len: int, num_batches: int, sm_count: int, num_kv_splits: int
) -> int:
    # Parts of results in float32, one for each multiprocessor and 128 heads.
    return 4 * 128 * 512 * sm_count


@streams("merge_attn_states")
def _merge(
    output: Tensor,
    output_lse: Tensor | None,
    prefix_output: Tensor,
    prefix_lse: Tensor,
    suffix_output: Tensor,
    suffix_lse: Tensor,
    prefill_tokens_with_context: int | None = None,
) -> None:
    # Sums of no keys may be infinite of either sign.
    sums = [item.masked_fill(item.isposinf(), float("-inf")) for item in (prefix_lse, suffix_lse)]
    if prefill_tokens_with_context is not None:
        sums[0] = sums[0].clone()
        sums[0][:, prefill_tokens_with_context:] = float("-inf")
    whole = torch.logaddexp(*sums)
    parts = [(item - whole).exp().nan_to_num(0.0).t().unsqueeze(-1) for item in sums]
    nan = prefix_output.float().nan_to_num(0.0) * parts[0] + suffix_output.float() * parts[1]
    output.copy_(nan)
    if output_lse is not None:
        output_lse.copy_(whole)
