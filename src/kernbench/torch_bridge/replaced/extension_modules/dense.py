"""Norms, activations, rotary embeddings, rows of tables, and writes to caches of keys and values.

Source: the definitions that vLLM's own tests compare its kernels with (``tests/kernels/core``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.replaced.extension_modules.definitions import streams
from kernbench.torch_bridge.replaced.package_kernels.flash_values import rotated

_LARGEST_FP8 = torch.finfo(torch.float8_e4m3fn).max


def normalized(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Return rows over their root mean square, rounded, times a weight."""
    wide = x.float()
    made = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)
    return made if weight is None else made * weight


def added(x: Tensor, residual: Tensor) -> Tensor:
    """Add to a residual in its place, and return it."""
    return residual.add_(x)


@streams("rms_norm")
def _rms_norm(result: Tensor, input: Tensor, weight: Tensor | None, epsilon: float) -> None:
    result.copy_(normalized(input, weight, epsilon))


@streams("fused_add_rms_norm", over=("input", "residual"))
def _fused_add_rms_norm(
    input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float
) -> None:
    input.copy_(normalized(added(input, residual), weight, epsilon))


def _gated(name: str, activate: Any, out: str = "out") -> None:
    if out == "out":

        def compute(out: Tensor, input: Tensor) -> None:
            first, second = input.chunk(2, -1)
            out.copy_(activate(first.float()).to(input.dtype) * second)
    else:

        def compute(result: Tensor, input: Tensor) -> None:  # type: ignore[misc]
            first, second = input.chunk(2, -1)
            result.copy_(activate(first.float()).to(input.dtype) * second)

    streams(name)(compute)


_gated("silu_and_mul", silu, "result")
_gated("gelu_and_mul", gelu)
_gated("gelu_tanh_and_mul", lambda x: gelu(x, approximate="tanh"))


@streams("mul_and_silu")
def _mul_and_silu(out: Tensor, input: Tensor) -> None:
    first, second = input.chunk(2, -1)
    out.copy_(first * silu(second.float()).to(input.dtype))


@streams("swigluoai_and_mul")
def _swigluoai(out: Tensor, input: Tensor, alpha: float, limit: float) -> None:
    gate, up = input[..., ::2].float().clamp(max=limit), input[..., 1::2].float()
    out.copy_((up.clamp(-limit, limit) + 1) * gate * torch.sigmoid(gate * alpha))


def _rows_of_heads(x: Tensor, positions: Tensor, head_size: int) -> Tensor:
    return x if x.dim() == positions.dim() + 2 else x.unflatten(-1, (-1, head_size))


def _rotary_bytes(
    positions: Tensor, query: Tensor, key: Tensor | None, cos_sin_cache: Tensor, **named: Any
) -> tuple[int, int]:
    rows = positions.numel() * cos_sin_cache.shape[-1] * cos_sin_cache.element_size()
    over = num_bytes((query, key))
    return over + rows + num_bytes((positions,)), over


@streams("rotary_embedding", moves=_rotary_bytes)
def _rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    cos, sin = cos_sin_cache.chunk(2, -1)
    for each in (query, key):
        if each is not None:
            heads = _rows_of_heads(each, positions, head_size)[..., rope_dim_offset:]
            made = rotated(heads, cos, sin, positions, interleaved=not is_neox, back=inverse)
            heads.copy_(made)


def _embedding_bytes(out: Tensor, input_ids: Tensor, **named: Any) -> tuple[int, int]:
    return num_bytes((out, input_ids)), num_bytes((out,))


@streams("vocab_parallel_embedding", moves=_embedding_bytes)
def _vocab_parallel_embedding(
    out: Tensor,
    input_ids: Tensor,
    weight: Tensor,
    org_vocab_start_index: int,
    org_vocab_end_index: int,
    num_org_vocab_padding: int,
    added_vocab_start_index: int,
    added_vocab_end_index: int,
) -> None:
    is_own = (input_ids >= org_vocab_start_index) & (input_ids < org_vocab_end_index)
    is_added = (input_ids >= added_vocab_start_index) & (input_ids < added_vocab_end_index)
    own_rows = org_vocab_end_index - org_vocab_start_index + num_org_vocab_padding
    rows = torch.where(
        is_added, input_ids - added_vocab_start_index + own_rows, input_ids - org_vocab_start_index
    )
    there = (is_own | is_added).unsqueeze(-1)
    out.copy_(weight[rows.where(there.squeeze(-1), 0)].where(there, 0))


def as_stored(x: Tensor, cache: Tensor, kind: str, scale: Tensor | None) -> Tensor:
    """Return numbers as a cache of a kind of numbers (vLLM's ``kv_cache_dtype``) holds them.

    Raises:
        UnsupportedTorchError: The kind is none of plain numbers and FP8 (E4M3).
    """
    if not kind.startswith("fp8"):
        return x.to(cache.dtype)
    if kind not in ("fp8", "fp8_e4m3"):
        raise UnsupportedTorchError(
            f"kv_cache_dtype={kind}: kernbench defines caches of plain numbers and of fp8_e4m3; "
            "use one of these"
        )
    assert scale is not None
    wide = (x.float() / scale).clamp(-_LARGEST_FP8, _LARGEST_FP8)
    return wide.to(torch.float8_e4m3fn).view(cache.dtype)


def as_read(x: Tensor, kind: str, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return what :func:`as_stored` stored."""
    if not kind.startswith("fp8"):
        return x.to(dtype)
    assert scale is not None
    return (x.view(torch.float8_e4m3fn).float() * scale).to(dtype)


def _places(slot_mapping: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return which tokens have slots, their pages, and their places in these."""
    has_slot = slot_mapping >= 0
    slots = slot_mapping[has_slot].long()
    return has_slot.nonzero().flatten(), slots // size, slots % size


def _cache_bytes(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    **named: Any,
) -> tuple[int, int]:
    # Tokens that only fill up a batch have no slots.
    new = key[: slot_mapping.shape[0]], value[: slot_mapping.shape[0]]
    elements = sum(each.numel() for each in new)
    return num_bytes((*new, slot_mapping)), elements * key_cache.element_size()


@streams("reshape_and_cache_flash", moves=_cache_bytes)
def _reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    tokens, pages, places = _places(slot_mapping, key_cache.shape[1])
    for cache, new, scale in ((key_cache, key, k_scale), (value_cache, value, v_scale)):
        cache[pages, places] = as_stored(new[tokens], cache, kv_cache_dtype, scale)


@streams("reshape_and_cache", moves=_cache_bytes)
def _reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    # Keys: (pages, heads, size / x, page, x); values: (pages, heads, size, page).
    tokens, pages, places = _places(slot_mapping, key_cache.shape[3])
    keys = key[tokens].unflatten(-1, (-1, key_cache.shape[4]))
    key_cache[pages, :, :, places] = as_stored(keys, key_cache, kv_cache_dtype, k_scale)
    values = as_stored(value[tokens], value_cache, kv_cache_dtype, v_scale)
    value_cache[pages, :, :, places] = values


def _mla_bytes(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **named: Any
) -> tuple[int, int]:
    new = kv_c[: slot_mapping.shape[0]], k_pe[: slot_mapping.shape[0]]
    stored = sum(each.numel() for each in new) * kv_cache.element_size()
    return num_bytes((*new, slot_mapping)), stored


@streams("concat_and_cache_mla", moves=_mla_bytes)
def _concat_and_cache_mla(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    scale: Tensor,
) -> None:
    tokens, pages, places = _places(slot_mapping, kv_cache.shape[1])
    rows = torch.cat((kv_c[tokens], k_pe[tokens].flatten(1)), -1)
    kv_cache[pages, places] = as_stored(rows, kv_cache, kv_cache_dtype, scale)


@streams("concat_mla_q")
def _concat_mla_q(ql_nope: Tensor, q_pe: Tensor, q_out: Tensor) -> None:
    q_out.copy_(torch.cat((ql_nope, q_pe), -1))


def _gathered_bytes(src_cache: Tensor, dst: Tensor, **named: Any) -> tuple[int, int]:
    return dst.numel() * src_cache.element_size(), num_bytes((dst,))


@streams("gather_and_maybe_dequant_cache", moves=_gathered_bytes)
def _gather_cache(
    src_cache: Tensor,
    dst: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    token_to_seq: Tensor,
    num_tokens: int,
    kv_cache_dtype: str,
    scale: Tensor,
    seq_starts: Tensor | None,
) -> None:
    size = src_cache.shape[1]
    rows = token_to_seq[:num_tokens].long()
    places = torch.arange(num_tokens) - cu_seq_lens[rows].long()
    if seq_starts is not None:
        places = places + seq_starts[rows].long() // size * size
    pages = block_table[rows, places // size].long()
    found = src_cache[pages, places % size]
    dst[:num_tokens] = as_read(found, kv_cache_dtype, scale, dst.dtype)
