"""Writes to caches of keys and values and of latent vectors, and what is gathered from them.

Source: the definitions that vLLM's own tests compare its kernels with
(``tests/kernels/attention``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    OperatorAsked,
    defines,
    streams,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_values import rotated

_FP8 = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def _fp8_of(kind: str) -> torch.dtype | None:
    """Return the FP8 that a cache of a kind (vLLM's ``kv_cache_dtype``) holds; None of others.

    Raises:
        UnsupportedTorchError: The kind is none of plain numbers and FP8.
    """
    if kind in _FP8 or not kind.startswith(("fp8", "nvfp4", "int8")):
        return _FP8.get(kind)
    raise UnsupportedTorchError(
        f"kv_cache_dtype={kind}: kernbench defines caches of plain numbers, {' and '.join(_FP8)}; "
        "use one of these"
    )


def as_stored(x: Tensor, cache: Tensor, kind: str, scale: Tensor | None) -> Tensor:
    """Return numbers as a cache of a kind holds them."""
    dtype = _fp8_of(kind)
    if dtype is None:
        return x.to(cache.dtype)
    assert scale is not None
    most = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-most, most).to(dtype).view(cache.dtype)


def as_read(x: Tensor, kind: str, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return what :func:`as_stored` stored."""
    stored = _fp8_of(kind)
    if stored is None:
        return x.to(dtype)
    assert scale is not None
    return (x.view(stored).float() * scale).to(dtype)


@streams("convert_fp8")
def _convert_fp8(dst_cache: Tensor, src_cache: Tensor, scale: float, kv_cache_dtype: str) -> None:
    kind = "fp8" if kv_cache_dtype == "auto" else kv_cache_dtype
    by = torch.tensor(scale)
    if src_cache.element_size() == 1:
        dst_cache.copy_(as_read(src_cache, kind, by, dst_cache.dtype))
    else:
        dst_cache.copy_(as_stored(src_cache, dst_cache, kind, by))


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
    elements = sum(item.numel() for item in new)
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
    stored = sum(item.numel() for item in new) * kv_cache.element_size()
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
    result = src_cache[pages, places % size]
    dst[:num_tokens] = as_read(result, kv_cache_dtype, scale, dst.dtype)


def _paged_rows(src_cache: Tensor, dst: Tensor, **named: Any) -> tuple[int, int]:
    return num_bytes((dst,)), num_bytes((dst,))


@streams("cp_gather_cache", moves=_paged_rows)
def _cp_gather_cache(
    src_cache: Tensor,
    dst: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    batch_size: int,
    seq_starts: Tensor | None = None,
) -> None:
    counts = cu_seq_lens[: batch_size + 1].long().diff()
    rows = torch.arange(batch_size).repeat_interleave(counts)
    kind, scale = "auto", None
    _gather_cache(
        src_cache, dst, block_table, cu_seq_lens, rows, rows.numel(), kind, scale, seq_starts
    )


def _rope_and_cache_bytes(
    q_pe: Tensor, k_pe: Tensor, kv_c: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **named: Any
) -> tuple[int, int]:
    read, stored = _mla_bytes(kv_c, k_pe, kv_cache, slot_mapping)
    over = num_bytes((q_pe, k_pe))
    return read + over, stored + over


@streams("concat_and_cache_mla_rope_fused", moves=_rope_and_cache_bytes)
def _rope_and_cache_mla(
    positions: Tensor,
    q_pe: Tensor,
    k_pe: Tensor,
    kv_c: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    kv_cache_dtype: str,
    kv_cache_scale: Tensor,
) -> None:
    cos, sin = cos_sin_cache.chunk(2, -1)
    for item in (q_pe, k_pe):
        heads = item if item.dim() == positions.dim() + 2 else item.unsqueeze(-2)
        heads.copy_(rotated(heads, cos, sin, positions, interleaved=not is_neox))
    _concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, kv_cache_scale)


@defines("swap_blocks")
def _swap_blocks(
    asked: OperatorAsked,
    src: Tensor,
    dst: Tensor,
    block_size_in_bytes: int,
    block_mapping: Tensor,
) -> None:
    # A copy for each block, as the CUDA C++ asks for it.
    for of_source, of_target in block_mapping.tolist():
        dst[of_target].copy_(src[of_source], non_blocking=True)
