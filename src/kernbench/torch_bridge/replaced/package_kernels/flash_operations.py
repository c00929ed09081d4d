"""FlashAttention's operations on simulated devices, under the names that its package registers.

The kernels are CUDA C++. Here each is computed by its definition, and takes the time of the kernel
on the sequences that its tensors of lengths say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import pairwise, starmap
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.costs.attention import FlashCall, lengths_between
from kernbench.torch_bridge.processes.of_all import OperatorCall, as_kernel, library_of_all
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.processes.registrations import BACKEND, SHARED, Kernel
from kernbench.torch_bridge.replaced.package_kernels.flash_calls import (
    NAMESPACE,
    Lengths,
    between,
    call_of,
    check,
    check_lengths,
    check_sums,
    drawn,
    kernel_of,
    launch,
    made_for,
    of_each,
    paged,
    seeded,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_values import (
    FlashOptions,
    attend,
    gradients,
    rotated,
)
from kernbench.torch_bridge.replaced.package_kernels.launching import run_kernel


def pages(cache: Tensor, table: Tensor, count: int) -> Tensor:
    """Return the first keys of sequences, ``(batch, count, heads, size)``, from their pages."""
    num_pages = -(-count // cache.shape[1])
    # Tables are filled up with -1.
    result = cache[table[:, :num_pages].long().clamp(min=0)]
    return result.flatten(1, 2)[:, :count]


def _options(call: OperatorCall) -> FlashOptions:
    return FlashOptions(
        scale=call.softmax_scale,
        causal=call.causal,
        left=call.window_size_left,
        right=call.window_size_right,
        softcap=call.softcap,
        dropout=call.dropout_p,
    )


def _asked(name: str, kernel: str, q: Tensor, k: Tensor, options: FlashOptions) -> FlashCall:
    return call_of(f"{NAMESPACE}.{name}", f"flash2_{kernel}", q, k, options)


def _cache_shapes(call: OperatorCall) -> tuple[Tensor, Tensor]:
    return made_for(call.q, call.v_cache)


def _with_cache(call: OperatorCall) -> tuple[Tensor, Tensor]:
    q, k, k_cache, v_cache = call.q, call.k, call.k_cache, call.v_cache
    used, table, interleaved = call.cache_seqlens, call.block_table, call.rotary_interleaved
    check(q, k_cache, v_cache)
    check_lengths(cache_seqlens=used)
    if k is not None and used is None:
        raise RuntimeError("FlashAttention: if key is supplied, cache_seqlens must be, too")
    options = _options(call)
    batch, queries = q.shape[:2]
    out, lse = _cache_shapes(call)
    capacity = k_cache.shape[1] * (1 if table is None else table.shape[1])

    def compute(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any, v: Any, cos: Any, sin: Any, used: Any,
        index: Any, table: Any, alibi: Any, out: Tensor, lse: Tensor,
    ) -> None:  # fmt: skip
        lengths = torch.full((batch,), capacity) if used is None else used.long()
        cache = _Cache(k_cache, v_cache, index, table, lengths)
        if cos is not None:
            places = lengths[:, None] + torch.arange(queries)
            looks_back = options.causal or options.left >= 0 or options.right >= 0
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

    flash = _asked("_flash_attn_with_kvcache", kernel_of(queries), q, k_cache, options)
    new = 0 if k is None else k.shape[1]
    lengths = Lengths(lambda: (queries,) * batch, of_each(used, batch, capacity, new))
    rotary = call.rotary_cos, call.rotary_sin
    rows = call.cache_batch_idx, table, call.alibi_slopes
    operands = (q, k_cache, v_cache, k, call.v, *rotary, used, *rows, out, lse)
    written = (out, lse) if k is None else (out, lse, k_cache, v_cache)
    launch(call.func, compute, operands, written, flash, lengths)
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


def _rotate(call: OperatorCall) -> None:
    x, cos, out, offset = call.x, call.cos, call.out, call.offset

    def compute(x: Tensor, cos: Tensor, sin: Tensor, offsets: Any, ends: Any, out: Tensor) -> None:
        if ends is None:
            places = torch.arange(x.shape[1]) + offset
            if offsets is not None:
                places = places + offsets[:, None]
        else:
            places = _places(ends.tolist(), offset, offsets)
        out.copy_(rotated(x, cos, sin, places, interleaved=call.interleaved, back=call.conjugate))

    moved = x.numel() * x.element_size()
    if out is x or out.data_ptr() == x.data_ptr():
        # What is not rotated stays where it is.
        moved = moved * 2 * cos.shape[-1] // x.shape[-1]
    costs = current().session.costs
    name = f"{NAMESPACE}._rotary"

    def timing(sip_id: int) -> Any:
        return costs.streamed(name, moved, moved, sip_id)

    operands = (x, cos, call.sin, call.offsets, call.cu_seqlens, out)
    run_kernel(call.func, compute, operands, (out,), timing)


def _places(ends: list[int], offset: int, offsets: Tensor | None) -> Tensor:
    """Return the place of each token in its sequence."""
    first = [0] * (len(ends) - 1) if offsets is None else offsets.tolist()
    counts = lengths_between(ends)
    parts = [
        torch.arange(count) + offset + begin for count, begin in zip(counts, first, strict=True)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


_OPTIONS = (
    "float dropout_p, float softmax_scale, bool causal, int window_size_left, "
    "int window_size_right, float softcap, Tensor? alibi_slopes"
)
_LENGTHS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k"
_GRADIENTS = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv"
)
_SCHEMAS = (
    f"_flash_attn_forward(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool return_softmax) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, {_LENGTHS}, {_OPTIONS}, "
    "bool return_softmax, Tensor? block_table, Tensor? seqused_k) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_backward({_GRADIENTS}, {_OPTIONS}, bool deterministic, Tensor? rng_state) -> "
    "Tensor",
    f"_flash_attn_varlen_backward({_GRADIENTS}, {_LENGTHS}, {_OPTIONS}, bool deterministic, "
    "Tensor? rng_state) -> Tensor",
    "_flash_attn_with_kvcache(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k, "
    "Tensor? v, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? cache_seqlens, "
    "Tensor? cache_batch_idx, Tensor? block_table, Tensor? alibi_slopes, float softmax_scale, "
    "bool causal, int window_size_left, int window_size_right, float softcap, "
    "bool rotary_interleaved) -> (Tensor, Tensor)",
    "_rotary(Tensor x, Tensor cos, Tensor sin, int offset, Tensor? offsets, Tensor? cu_seqlens, "
    "bool interleaved, bool conjugate, Tensor(a!) out) -> ()",
)


_WITHOUT = {"dropout_p": 0.0}
"""What stands for options that an operation does not have."""
_Kernel = Callable[[OperatorCall], Any]


def install(patches: Patches, note: Callable[[], object]) -> None:
    """Define the operations, for all processes; ``note`` is called when one of them runs."""
    library = library_of_all(NAMESPACE, "DEF")
    patches.on_close(library._destroy)
    patches.on_close(SHARED.remove_for_all, library)
    functions: dict[str, tuple[_Kernel, _Kernel]] = {
        "_flash_attn_forward": (_forward, _shapes),
        "_flash_attn_varlen_forward": (_varlen_forward, _shapes),
        "_flash_attn_backward": (_backward, _rows_like),
        "_flash_attn_varlen_backward": (_varlen_backward, _rows_like),
        "_flash_attn_with_kvcache": (_with_cache, _cache_shapes),
        "_rotary": (_rotate, lambda call: None),
    }
    for schema in _SCHEMAS:
        library.define(schema)
        name = schema.partition("(")[0]
        func = getattr(getattr(torch.ops, NAMESPACE), name).default
        on_device, shapes = (as_kernel(func, kernel, _WITHOUT) for kernel in functions[name])
        library.impl(name, shapes, "Meta")
        SHARED.add(f"{NAMESPACE}::{name}", BACKEND, Kernel(library, _noted(on_device, note), False))


def _noted(function: Callable[..., Any], note: Callable[[], object]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        note()
        return function(*args, **kwargs)

    return call


def _forward(call: OperatorCall) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v, options = call.q, call.k, call.v, _options(call)
    check(q, k, v)
    batch, queries = q.shape[:2]
    out, lse = made_for(q, v)
    state = drawn(q, options.dropout)

    def compute(
        q: Tensor, k: Tensor, v: Tensor, alibi: Any, state: Tensor, out: Tensor, lse: Tensor
    ) -> None:
        pair = attend(q, k, v, None, seeded(options, state), alibi)
        out.copy_(pair[0])
        lse.copy_(pair[1])

    flash = _asked("_flash_attn_forward", kernel_of(queries), q, k, options)
    lengths = Lengths(lambda: (queries,) * batch, lambda: (k.shape[1],) * batch)
    operands = (q, k, v, call.alibi_slopes, state, out, lse)
    launch(call.func, compute, operands, (out, lse), flash, lengths)
    return out, lse, q.new_empty(0), state


def _shapes(call: OperatorCall) -> tuple[Tensor, ...]:
    return *made_for(call.q, call.v), call.q.new_empty(0), call.q.new_empty(2, dtype=torch.int64)


def _varlen_forward(call: OperatorCall) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v, options = call.q, call.k, call.v, _options(call)
    ends_q, ends_k = call.cu_seqlens_q, call.cu_seqlens_k
    used, block_table = call.seqused_k, call.block_table
    check(q, k, v)
    check_lengths(cu_seqlens_q=ends_q, cu_seqlens_k=ends_k)
    out, lse = made_for(q, v)
    state = drawn(q, options.dropout)

    def compute(
        q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, table: Any, used: Any,
        alibi: Any, state: Tensor, out: Tensor, lse: Tensor,
    ) -> None:  # fmt: skip
        attend_sequences(
            q, k, v, ends_q, ends_k, table, used, alibi, seeded(options, state), out, lse
        )

    count, max_k = ends_q.numel() - 1, call.max_seqlen_k
    if used is not None:
        of_keys = of_each(used, count, max_k)
    elif block_table is not None:
        known = ends_k if ends_k.numel() == count + 1 else None
        of_keys = paged(known, count, max_k)
    else:
        of_keys = between(ends_k, k.shape[0])
    lengths = Lengths(between(ends_q, q.shape[0]), of_keys)
    flash = _asked("_flash_attn_varlen_forward", kernel_of(call.max_seqlen_q), q, k, options)
    rest = block_table, used, call.alibi_slopes, state, out, lse
    launch(call.func, compute, (q, k, v, ends_q, ends_k, *rest), (out, lse), flash, lengths)
    return out, lse, q.new_empty(0), state


def attend_sequences(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor | None, table: Tensor | None,
    used: Tensor | None, alibi: Tensor | None, options: FlashOptions, out: Tensor, lse: Tensor,
    scales: Sequence[Tensor | None] = (None, None, None), of_values: Tensor | None = None,
) -> None:  # fmt: skip
    """Write what queries ``(total, heads, size)`` see of their sequences to ``out`` and ``lse``.

    ``scales``, ``(sequences, kv heads)``, are those of 8-bit queries, keys and values. Queries
    ``of_values`` are multiplied by values, and added to the scores: those of latent vectors.
    """
    for number, (rows, *pair) in enumerate(_sequences(q, (k, v), ends_q, ends_k, table, used)):
        slopes = alibi if alibi is None or alibi.dim() == 1 else alibi[number : number + 1]
        parts = [
            part if scale is None or part.element_size() > 1 else _scaled(part, scale[number])
            for part, scale in zip((q[rows], *pair), scales, strict=True)
        ]
        if of_values is not None:
            more = _scaled(of_values[rows], scales[0][number]) if scales[0] is not None else None
            parts[0] = torch.cat((parts[0], of_values[rows] if more is None else more), -1)
            parts[1] = torch.cat((parts[1], parts[2]), -1)
        queries, keys, values = (part[None] for part in parts)
        result = attend(queries, keys, values, None, options, slopes)
        out[rows] = result[0][0].to(out.dtype)
        lse[:, rows] = result[1][0]


def _scaled(x: Tensor, scale: Tensor) -> Tensor:
    return x.float() * scale.repeat_interleave(x.shape[-2] // scale.numel()).unsqueeze(-1)


def _sequences(
    q: Tensor,
    caches: tuple[Tensor, Tensor],
    ends_q: Tensor,
    ends_k: Tensor | None,
    table: Tensor | None,
    used: Tensor | None,
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield the rows of each sequence, and its keys and values: ``(keys, heads, size)``."""
    of_queries, of_keys = ends_q.tolist(), [] if ends_k is None else ends_k.tolist()
    for number, (begin, end) in enumerate(pairwise(of_queries)):
        count = of_keys[number + 1] - of_keys[number] if used is None else int(used[number])
        if table is None:
            first = of_keys[number]
            k, v = (cache[first : first + count] for cache in caches)
        else:
            k, v = (pages(cache, table[number : number + 1], count)[0] for cache in caches)
        yield slice(begin, end), k, v


def _rows_like(call: OperatorCall) -> Tensor:
    return torch.empty_like(call.softmax_lse)


def _backward(call: OperatorCall) -> Tensor:
    q, k, lse, options = call.q, call.k, call.softmax_lse, _options(call)
    check_sums(lse, q)
    rows: Tensor = lse.new_empty(lse.shape)

    def compute(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, alibi: Any,
        state: Any, *written: Tensor,
    ) -> None:  # fmt: skip
        result = gradients(dout, q, k, v, out, lse, seeded(options, state), alibi)
        for target, built in zip(written, result, strict=True):
            target.copy_(built)

    flash = _asked("_flash_attn_backward", "backward", q, k, options)
    lengths = Lengths(lambda: (q.shape[1],) * q.shape[0], lambda: (k.shape[1],) * q.shape[0])
    written = (call.dq, call.dk, call.dv, rows)
    random = call.alibi_slopes, call.rng_state
    operands = (call.dout, q, k, call.v, call.out, lse, *random, *written)
    launch(call.func, compute, operands, written, flash, lengths)
    return rows


def _varlen_backward(call: OperatorCall) -> Tensor:
    q, k, lse, options = call.q, call.k, call.softmax_lse, _options(call)
    ends_q, ends_k = call.cu_seqlens_q, call.cu_seqlens_k
    check_sums(lse, q)
    rows: Tensor = lse.new_empty(lse.shape)

    def compute(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, ends_q: Tensor,
        ends_k: Tensor, alibi: Any, state: Any, dq: Tensor, dk: Tensor, dv: Tensor, rows: Tensor,
    ) -> None:  # fmt: skip
        spans = [starmap(slice, pairwise(ends.tolist())) for ends in (ends_q, ends_k)]
        for number, (here, there) in enumerate(zip(*spans, strict=True)):
            slopes = alibi if alibi is None or alibi.dim() == 1 else alibi[number : number + 1]
            result = gradients(
                dout[None, here],
                q[None, here],
                k[None, there],
                v[None, there],
                out[None, here],
                lse[None, :, here],
                seeded(options, state),
                slopes,
            )
            dq[here], dk[there], dv[there] = (item[0] for item in result[:3])
            rows[:, here] = result[3][0]

    flash = _asked("_flash_attn_varlen_backward", "backward", q, k, options)
    lengths = Lengths(between(ends_q, q.shape[0]), between(ends_k, k.shape[0]))
    written = (call.dq, call.dk, call.dv, rows)
    rest = ends_q, ends_k, call.alibi_slopes, call.rng_state
    operands = (call.dout, q, k, call.v, call.out, lse, *rest, *written)
    launch(call.func, compute, operands, written, flash, lengths)
    return rows
