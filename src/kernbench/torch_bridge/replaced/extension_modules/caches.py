"""Writes to caches of keys and values and of latent vectors, and what is gathered from them.

Source: the definitions that vLLM's own tests compare its kernels with
(``tests/kernels/attention``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
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


@streams("convert_fp8", takes="dst_cache src_cache scale kv_cache_dtype")
def _convert_fp8(call: OperatorCall) -> None:
    kind = "fp8" if call.kv_cache_dtype == "auto" else call.kv_cache_dtype
    by = torch.tensor(call.scale)
    if call.src_cache.element_size() == 1:
        call.dst_cache.copy_(as_read(call.src_cache, kind, by, call.dst_cache.dtype))
    else:
        call.dst_cache.copy_(as_stored(call.src_cache, call.dst_cache, kind, by))


def _places(slot_mapping: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return which tokens have slots, their pages, and their places in these."""
    has_slot = slot_mapping >= 0
    slots = slot_mapping[has_slot].long()
    return has_slot.nonzero().flatten(), slots // size, slots % size


def _new_bytes(call: OperatorCall, cache: Tensor, *new: Tensor) -> tuple[int, int]:
    # Tokens that only fill up a batch have no slots.
    tokens = [item[: call.slot_mapping.shape[0]] for item in new]
    stored = sum(item.numel() for item in tokens) * cache.element_size()
    return num_bytes((*tokens, call.slot_mapping)), stored


def _cache_bytes(call: OperatorCall) -> tuple[int, int]:
    return _new_bytes(call, call.key_cache, call.key, call.value)


def _as_in_caches(call: OperatorCall, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    kind = call.kv_cache_dtype
    stored = as_stored(keys, call.key_cache, kind, call.k_scale)
    return stored, as_stored(values, call.value_cache, kind, call.v_scale)


@streams(
    "reshape_and_cache_flash",
    takes="key value key_cache value_cache slot_mapping kv_cache_dtype k_scale v_scale",
    moves=_cache_bytes,
)
def _reshape_and_cache_flash(call: OperatorCall) -> None:
    tokens, pages, places = _places(call.slot_mapping, call.key_cache.shape[1])
    keys, values = _as_in_caches(call, call.key[tokens], call.value[tokens])
    call.key_cache[pages, places] = keys
    call.value_cache[pages, places] = values


@streams(
    "reshape_and_cache",
    takes="key value key_cache value_cache slot_mapping kv_cache_dtype k_scale v_scale",
    moves=_cache_bytes,
)
def _reshape_and_cache(call: OperatorCall) -> None:
    # Keys: (pages, heads, size / x, page, x); values: (pages, heads, size, page).
    tokens, pages, places = _places(call.slot_mapping, call.key_cache.shape[3])
    parts = call.key[tokens].unflatten(-1, (-1, call.key_cache.shape[4]))
    keys, values = _as_in_caches(call, parts, call.value[tokens])
    call.key_cache[pages, :, :, places] = keys
    call.value_cache[pages, :, :, places] = values


def _mla_bytes(call: OperatorCall) -> tuple[int, int]:
    return _new_bytes(call, call.kv_cache, call.kv_c, call.k_pe)


def _cache_latents(call: OperatorCall, scale: Tensor) -> None:
    tokens, pages, places = _places(call.slot_mapping, call.kv_cache.shape[1])
    rows = torch.cat((call.kv_c[tokens], call.k_pe[tokens].flatten(1)), -1)
    call.kv_cache[pages, places] = as_stored(rows, call.kv_cache, call.kv_cache_dtype, scale)


@streams(
    "concat_and_cache_mla",
    takes="kv_c k_pe kv_cache slot_mapping kv_cache_dtype scale",
    moves=_mla_bytes,
)
def _concat_and_cache_mla(call: OperatorCall) -> None:
    _cache_latents(call, call.scale)


@streams("concat_mla_q", takes="ql_nope q_pe q_out")
def _concat_mla_q(call: OperatorCall) -> None:
    call.q_out.copy_(torch.cat((call.ql_nope, call.q_pe), -1))


def _gather(call: OperatorCall, rows: Tensor, kind: str, scale: Tensor | None) -> None:
    """Write what the sequences ``rows`` have in their pages, one token after another."""
    size, count = call.src_cache.shape[1], rows.numel()
    places = torch.arange(count) - call.cu_seq_lens[rows].long()
    if call.seq_starts is not None:
        places = places + call.seq_starts[rows].long() // size * size
    result = call.src_cache[call.block_table[rows, places // size].long(), places % size]
    call.dst[:count] = as_read(result, kind, scale, call.dst.dtype)


@streams(
    "gather_and_maybe_dequant_cache",
    takes=(
        "src_cache dst block_table cu_seq_lens token_to_seq num_tokens kv_cache_dtype scale "
        "seq_starts"
    ),
    moves=lambda call: (
        call.dst.numel() * call.src_cache.element_size(),
        num_bytes((call.dst,)),
    ),
)
def _gather_cache(call: OperatorCall) -> None:
    rows = call.token_to_seq[: call.num_tokens].long()
    _gather(call, rows, call.kv_cache_dtype, call.scale)


@streams(
    "cp_gather_cache",
    takes="src_cache dst block_table cu_seq_lens batch_size seq_starts",
    moves=lambda call: (num_bytes((call.dst,)), num_bytes((call.dst,))),
)
def _cp_gather_cache(call: OperatorCall) -> None:
    counts = call.cu_seq_lens[: call.batch_size + 1].long().diff()
    _gather(call, torch.arange(call.batch_size).repeat_interleave(counts), "auto", None)


def _rope_and_cache_bytes(call: OperatorCall) -> tuple[int, int]:
    (read, stored), over = _mla_bytes(call), num_bytes((call.q_pe, call.k_pe))
    return read + over, stored + over


@streams(
    "concat_and_cache_mla_rope_fused",
    takes=(
        "positions q_pe k_pe kv_c cos_sin_cache is_neox slot_mapping kv_cache kv_cache_dtype "
        "kv_cache_scale"
    ),
    moves=_rope_and_cache_bytes,
)
def _rope_and_cache_mla(call: OperatorCall) -> None:
    cos, sin = call.cos_sin_cache.chunk(2, -1)
    for item in (call.q_pe, call.k_pe):
        heads = item if item.dim() == call.positions.dim() + 2 else item.unsqueeze(-2)
        heads.copy_(rotated(heads, cos, sin, call.positions, interleaved=not call.is_neox))
    _cache_latents(call, call.kv_cache_scale)


@defines("swap_blocks", takes="src dst block_size_in_bytes block_mapping")
def _swap_blocks(call: OperatorCall) -> None:
    # A copy for each block, as the CUDA C++ asks for it.
    for of_source, of_target in call.block_mapping.tolist():
        call.dst[of_target].copy_(call.src[of_source], non_blocking=True)
