"""FlashAttention with a cache of keys and values, and rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.costs.attention import lengths_between
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.package_kernels.flash_calls import (
    NAMESPACE,
    Lengths,
    call_of,
    check,
    check_lengths,
    kernel_of,
    launch,
    made_for,
    of_each,
    options_of,
    overload,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_values import attend, rotated
from kernbench.torch_bridge.replaced.package_kernels.launching import run_kernel


def pages(cache: Tensor, table: Tensor, count: int) -> Tensor:
    """Return the first keys of sequences, ``(batch, count, heads, size)``, from their pages."""
    size = cache.shape[1]
    num_pages = -(-count // size)
    # Tables are filled up with -1.
    result = cache[table[:, :num_pages].long().clamp(min=0)]
    return result.flatten(1, 2)[:, :count]


def cache_shapes(q: Tensor, k_cache: Tensor, v_cache: Tensor, *value: Any) -> Any:
    return made_for(q, v_cache, (q.shape[0], q.shape[2], q.shape[1]))


def with_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    used: Tensor | None,
    index: Tensor | None,
    table: Tensor | None,
    alibi: Tensor | None,
    scale: float,
    causal: bool,
    left: int,
    right: int,
    softcap: float,
    interleaved: bool,
) -> tuple[Tensor, Tensor]:
    check(q, k_cache, v_cache)
    check_lengths(cache_seqlens=used)
    if k is not None and used is None:
        raise RuntimeError("FlashAttention: if key is supplied, cache_seqlens must be, too")
    options = options_of(0.0, scale, causal, left, right, softcap)
    batch, queries = q.shape[:2]
    out, lse = cache_shapes(q, k_cache, v_cache)
    capacity = k_cache.shape[1] * (1 if table is None else table.shape[1])

    def compute(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any, v: Any, cos: Any, sin: Any, used: Any,
        index: Any, table: Any, alibi: Any, out: Tensor, lse: Tensor,
    ) -> None:  # fmt: skip
        lengths = torch.full((batch,), capacity) if used is None else used.long()
        cache = _Cache(k_cache, v_cache, index, table, lengths)
        if cos is not None:
            places = lengths[:, None] + torch.arange(queries)
            looks_back = causal or left >= 0 or right >= 0
            at = places if looks_back else lengths[:, None].expand(-1, queries)
            q = rotated(q, cos, sin, at, interleaved=interleaved)
        if k is not None:
            if cos is not None:
                places = lengths[:, None] + torch.arange(k.shape[1])
                k = rotated(k, cos, sin, places, interleaved=interleaved)
            cache.append(k, v)
        pair = attend(q, *cache.held(), cache.lengths, options, alibi)
        out.copy_(pair[0])
        lse.copy_(pair[1])

    name = "_flash_attn_with_kvcache"
    call = call_of(name, kernel_of(queries), q, k_cache, options)
    new = 0 if k is None else k.shape[1]
    lengths = Lengths(lambda: (queries,) * batch, of_each(used, batch, capacity, new))
    operands = (q, k_cache, v_cache, k, v, cos, sin, used, index, table, alibi, out, lse)
    written = (out, lse) if k is None else (out, lse, k_cache, v_cache)
    launch(overload(name), compute, operands, written, call, lengths)
    return out, lse


class _Cache:
    """Keys and values of sequences, each in a row of the cache, or in pages."""

    def __init__(
        self, k: Tensor, v: Tensor, index: Tensor | None, table: Tensor | None, lengths: Tensor
    ) -> None:
        self._caches = k, v
        self._table = table
        self._rows = torch.arange(lengths.numel()) if index is None else index.long()
        self.lengths = lengths

    def append(self, k: Tensor, v: Tensor) -> None:
        """Write new keys and values behind those that are there."""
        places = self.lengths[:, None] + torch.arange(k.shape[1])
        if self._table is None:
            at = (self._rows[:, None].expand_as(places), places)
        else:
            size = self._caches[0].shape[1]
            at = (self._table.long().gather(1, places // size), places % size)
        for cache, new in zip(self._caches, (k, v), strict=True):
            cache[at] = new.to(cache.dtype)
        self.lengths = self.lengths + k.shape[1]

    def held(self) -> tuple[Tensor, Tensor]:
        """Return keys and values up to the longest sequence, ``(batch, keys, heads, size)``."""
        most = int(self.lengths.max()) if self.lengths.numel() else 0
        if self._table is not None:
            k, v = (pages(cache, self._table, most) for cache in self._caches)
        else:
            k, v = (cache[self._rows, :most] for cache in self._caches)
        return k, v


def no_shapes(*value: Any) -> None:
    """Return nothing: the result is written to an operand."""


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    offset: int,
    offsets: Tensor | None,
    ends: Tensor | None,
    interleaved: bool,
    conjugate: bool,
    out: Tensor,
) -> None:
    size = 2 * cos.shape[-1]

    def compute(x: Tensor, cos: Tensor, sin: Tensor, offsets: Any, ends: Any, out: Tensor) -> None:
        if ends is None:
            places = torch.arange(x.shape[1]) + offset
            if offsets is not None:
                places = places + offsets[:, None]
        else:
            places = _places(ends.tolist(), offset, offsets)
        out.copy_(rotated(x, cos, sin, places, interleaved=interleaved, back=conjugate))

    moved = x.numel() * x.element_size()
    if out is x or out.data_ptr() == x.data_ptr():
        # What is not rotated stays where it is.
        moved = moved * size // x.shape[-1]
    costs = current().session.costs
    name = f"{NAMESPACE}._rotary"

    def timing(sip_id: int) -> Any:
        return costs.streamed(name, moved, moved, sip_id)

    run_kernel(overload("_rotary"), compute, (x, cos, sin, offsets, ends, out), (out,), timing)


def _places(ends: list[int], offset: int, offsets: Tensor | None) -> Tensor:
    """Return the place of each token in its sequence."""
    first = [0] * (len(ends) - 1) if offsets is None else offsets.tolist()
    counts = lengths_between(ends)
    parts = [
        torch.arange(count) + offset + begin for count, begin in zip(counts, first, strict=True)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)
