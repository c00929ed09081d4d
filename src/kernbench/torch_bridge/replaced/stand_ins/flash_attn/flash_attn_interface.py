"""Attention with FlashAttention's signatures. Tensors are ``(batch, length, heads, size)``.

With ``varlen`` the sequences lie one after another, ``(tokens, heads, size)``, and ``cu_seqlens``
are where each begins and the last one ends.
"""

from __future__ import annotations

from inspect import Signature, signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

_EVERYTHING = (-1, -1)
_MULTIPLE = 8
"""Head sizes that kernels take: others are filled up with zeros."""


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> Any:
    """Return results, log-sum-exp, nothing, and the state of random numbers."""
    return torch.ops.flash_attn._flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
        alibi_slopes, return_softmax,
    )  # fmt: skip


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> Any:
    _refuse(leftpad_k=leftpad_k)
    return torch.ops.flash_attn._flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), dropout_p,
        softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
        return_softmax, block_table, seqused_k,
    )  # fmt: skip


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Write the gradients of queries, keys and values; return the products of rows."""
    gradients = _written((dq, dk, dv), (q, k, v))
    row_products: Tensor = torch.ops.flash_attn._flash_attn_backward(
        dout, q, k, v, out, softmax_lse, *gradients, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, alibi_slopes, deterministic, rng_state,
    )  # fmt: skip
    return row_products


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    gradients = _written((dq, dk, dv), (q, k, v))
    varlen_backward: Tensor = torch.ops.flash_attn._flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, *gradients, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q),
        int(max_seqlen_k), dropout_p, softmax_scale, causal, window_size_left, window_size_right,
        softcap, alibi_slopes, deterministic, rng_state,
    )  # fmt: skip
    return varlen_backward


def _written(gradients: Any, operands: Any) -> list[Tensor]:
    """Return gradients to write: new ones like operands where there are none."""
    pairs = zip(gradients, operands, strict=True)
    return [torch.empty_like(like) if item is None else item for item, like in pairs]


# What FlashAttention calls them where PyTorch has operators of them, as here.
_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


class _FlashAttention(torch.autograd.Function):
    """Attention of ``q, k, v``, of ``q, kv`` or of ``qkv``, whose gradients are as packed."""

    @staticmethod
    def forward(
        ctx: Any, options: tuple[Any, ...], lengths: tuple[Any, ...], deterministic: bool,
        alibi: Tensor | None, table: Tensor | None, *tensors: Tensor,
    ) -> Any:  # fmt: skip
        unpacked: tuple[Any, ...] = (*_unpacked(tensors), *lengths, *options, alibi, False)
        forward: Any = _flash_attn_varlen_forward if lengths else _flash_attn_forward
        paged = {"block_table": table} if lengths else {}
        out, lse, _, state = forward(*unpacked, **paged)
        ctx.save_for_backward(*tensors, out, lse, state, alibi, *lengths[:2])
        ctx.options, ctx.lengths, ctx.deterministic = options, lengths[2:], deterministic
        ctx.is_paged, ctx.count = table is not None, len(tensors)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: Any) -> Any:
        if ctx.is_paged:
            raise RuntimeError("flash_attn: keys in pages have no gradient")
        tensors, rest = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        out, lse, state, alibi, *ends = rest
        gradients = [torch.empty_like(tensor) for tensor in tensors]
        value = (dout, *_unpacked(tensors), out, lse, *_unpacked(gradients))
        options = (*ctx.options, alibi, ctx.deterministic, state)
        if ends:
            _flash_attn_varlen_backward(*value, *ends, *ctx.lengths, *options)
        else:
            _flash_attn_backward(*value, *options)
        return None, None, None, None, None, *gradients


def _unpacked(tensors: Any) -> Any:
    """Return queries, keys and values, which are side by side before the heads where packed."""
    return (*tensors[:-1], *tensors[-1].unbind(-3)) if len(tensors) < 3 else tensors


def _attention(
    tensors: tuple[Tensor, ...],
    lengths: tuple[Any, ...],
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _EVERYTHING,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    size = tensors[0].shape[-1]
    scale = size**-0.5 if softmax_scale is None else softmax_scale
    if size % _MULTIPLE:
        tensors = tuple(pad(tensor, [0, -size % _MULTIPLE]) for tensor in tensors)
    options = (dropout_p, scale, causal, *window_size, softcap)
    out, lse = _FlashAttention.apply(
        options, lengths, deterministic, alibi_slopes, block_table, *tensors
    )
    out = out[..., :size] if size % _MULTIPLE else out
    return (out, lse, None) if return_attn_probs else out


def _with_options(function: Any) -> Any:
    """Show the options of attention in the signature of a function that passes them on.

    Packages look there for what this version takes. Keys are in pages for one function alone.
    """
    own = list(signature(function).parameters.values())[:-2]
    options = list(signature(_attention).parameters.values())[2:]
    if function.__name__ != "flash_attn_varlen_func":
        options = options[:-1]
    function.__signature__ = Signature([*own, *options])
    return function


@_with_options
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *options: Any, **named: Any) -> Any:
    """Return attention; with ``return_attn_probs`` also the log of sums of exponentials."""
    return _attention((q, k, v), (), *options, **named)


@_with_options
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Any:
    """Return attention to keys and values ``(batch, length, 2, heads, size)``."""
    return _attention((q, kv), (), *options, **named)


@_with_options
def flash_attn_qkvpacked_func(qkv: Tensor, *options: Any, **named: Any) -> Any:
    """Return attention of ``(batch, length, 3, heads, size)``."""
    return _attention((qkv,), (), *options, **named)


@_with_options
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *options: Any,
    **named: Any,
) -> Any:
    """Return attention of sequences one after another; keys are in pages with a table."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _attention((q, k, v), lengths, *options, **named)


@_with_options
def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *options: Any,
    **named: Any,
) -> Any:
    """Return attention to keys and values ``(tokens, 2, heads, size)``."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _attention((q, kv), lengths, *options, **named)


@_with_options
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *options: Any, **named: Any
) -> Any:
    """Return attention of ``(tokens, 3, heads, size)``."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return _attention((qkv,), lengths, *options, **named)


@torch.no_grad()
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _EVERYTHING,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Return attention to a cache, to which new keys and values are written first.

    ``cache_seqlens`` are the lengths before. The cache is ``(batch, length, heads, size)``, or
    with a table ``(pages, page size, heads, size)``. Keys and queries are rotated if cosines and
    sines are given.
    """
    _refuse(cache_leftpad=cache_leftpad)
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full(
            (q.shape[0],), cache_seqlens, dtype=torch.int32, device=k_cache.device
        )
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    out, lse = torch.ops.flash_attn._flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
        block_table, alibi_slopes, scale, causal, *window_size, softcap, rotary_interleaved,
    )  # fmt: skip
    return (out, lse) if return_softmax_lse else out


def _refuse(**values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            raise NotImplementedError(
                f"flash_attn: {name} is not a part of kernbench's stand-in; leave it out"
            )
