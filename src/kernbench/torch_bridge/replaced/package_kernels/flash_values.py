"""The numbers of FlashAttention's kernels: by the definition, in float32, rounded once at the end.

Tensors are as C++ has them. Queries are ``(batch, queries, heads, size)``, keys and values
``(batch, keys, kv heads, size)``, of which each sequence has its first ``lengths``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_SCORES = 1 << 24
"""Scores that are held at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashOptions:
    """What a call of FlashAttention says besides its tensors."""

    scale: float
    causal: bool = False
    """Whether a query sees the keys up to its own place, counted from the end."""
    left: int = -1
    """How many keys before its own place a query sees; all when negative."""
    right: int = -1
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0
    """The seed of the elements that dropout leaves out."""

    @property
    def sees_after(self) -> int:
        """Keys after its own place that a query sees; all when negative."""
        return 0 if self.causal else self.right


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some queries of some sequences, with float32 operands by heads of keys."""

    sequences: slice
    queries: slice
    q: Tensor
    """(sequences, kv heads, group, queries, size)."""
    k: Tensor
    """(sequences, kv heads, 1, keys, size)."""
    v: Tensor
    probabilities: Tensor
    """Probabilities after the mask, without dropout."""
    lse: Tensor
    kept: Tensor | None
    """Which probabilities dropout keeps, over the share that it keeps."""
    slope: Tensor | None
    """The derivative of scores by scaled products, where they are capped."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    options: FlashOptions,
    alibi: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return results ``(batch, queries, heads, size)``, and the log of sums of exponentials.

    The latter are ``(batch, heads, queries)`` in float32, and infinite for a query that sees no
    key, whose results are zeros.
    """
    batch, queries, heads, _ = q.shape
    out = q.new_empty(batch, queries, heads, v.shape[3])
    lse = q.new_empty(batch, heads, queries, dtype=torch.float32)
    for chunk in _chunks(q, k, v, lengths, options, alibi):
        p = chunk.probabilities if chunk.kept is None else chunk.probabilities * chunk.kept
        transpose = (p @ chunk.v).flatten(1, 2).transpose(1, 2)
        out[chunk.sequences, chunk.queries] = transpose.to(out.dtype)
        flatten = chunk.lse.flatten(1, 2)
        lse[chunk.sequences, :, chunk.queries] = flatten.masked_fill(
            flatten.isneginf(), float("inf")
        )
    return out, lse


def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    options: FlashOptions,
    alibi: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, and the products of rows.

    The latter are ``grad`` and ``out`` multiplied row by row: ``(batch, heads, queries)``. ``out``
    and ``lse`` may be those of more keys: what is returned is then the part of these keys.
    """
    kv_heads = k.shape[2]
    grad_q = torch.zeros_like(q, dtype=torch.float32)
    grad_k = torch.zeros_like(k, dtype=torch.float32)
    grad_v = torch.zeros_like(v, dtype=torch.float32)
    rows = (grad.float() * out.float()).sum(-1).transpose(1, 2)
    for chunk in _chunks(q, k, v, None, options, alibi, lse):
        at = chunk.sequences, chunk.queries
        of_out = _by_kv_heads(grad[at], kv_heads)
        of_rows = rows[chunk.sequences, :, chunk.queries].unflatten(1, (kv_heads, -1)).unsqueeze(-1)
        p, of_p = chunk.probabilities, of_out @ chunk.v.transpose(-1, -2)
        kept = p if chunk.kept is None else p * chunk.kept
        grad_v[chunk.sequences] += (kept.transpose(-1, -2) @ of_out).sum(2).transpose(1, 2)
        if chunk.kept is not None:
            of_p = of_p * chunk.kept
        of_scores = p * (of_p - of_rows) * options.scale
        if chunk.slope is not None:
            of_scores = of_scores * chunk.slope
        grad_q[at] = (of_scores @ chunk.k).flatten(1, 2).transpose(1, 2)
        grad_k[chunk.sequences] += (of_scores.transpose(-1, -2) @ chunk.q).sum(2).transpose(1, 2)
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), rows


def _by_kv_heads(q: Tensor, kv_heads: int) -> Tensor:
    """Return queries in float32 as ``(batch, kv heads, group, queries, size)``."""
    return q.float().transpose(1, 2).unflatten(1, (kv_heads, -1))


def _chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    options: FlashOptions,
    alibi: Tensor | None,
    every_lse: Tensor | None = None,
) -> Iterator[_Chunk]:
    """Yield queries with their probabilities, whose sums are known in a backward pass."""
    batch, queries, heads, _ = q.shape
    keys, kv_heads = k.shape[1], k.shape[2]
    draws = torch.Generator().manual_seed(options.seed) if options.dropout else None
    num_sequences = max(_MOST_SCORES // max(heads * queries * keys, 1), 1)
    num_queries = max(_MOST_SCORES // max(heads * keys, 1), 1)
    for first in range(0, batch, num_sequences):
        sequences = slice(first, min(first + num_sequences, batch))
        wide_k = k[sequences].float().transpose(1, 2).unsqueeze(2)
        wide_v = v[sequences].float().transpose(1, 2).unsqueeze(2)
        ends = torch.full((1,), keys) if lengths is None else lengths[sequences]
        slopes = alibi if alibi is None or alibi.dim() == 1 else alibi[sequences]
        for start in range(0, queries, num_queries):
            rows = slice(start, min(start + num_queries, queries))
            wide_q = _by_kv_heads(q[sequences, rows], kv_heads)
            scores = wide_q @ wide_k.transpose(-1, -2) * options.scale
            slope = None
            if options.softcap:
                capped = torch.tanh(scores / options.softcap)
                scores, slope = options.softcap * capped, 1 - capped.square()
            places = torch.arange(rows.start, rows.stop)[:, None] + (ends - queries)[:, None, None]
            scores = _masked(scores, places, ends, options, slopes)
            if every_lse is None:
                lse = scores.logsumexp(-1)
            else:
                lse = every_lse[sequences, :, rows].unflatten(1, (kv_heads, -1))
            p = (scores - lse.masked_fill(lse.isneginf(), 0.0).unsqueeze(-1)).exp()
            kept = None
            if draws is not None:
                stays = torch.rand(p.shape, generator=draws) >= options.dropout
                kept = stays / (1 - options.dropout)
            yield _Chunk(sequences, rows, wide_q, wide_k, wide_v, p, lse, kept, slope)


def _masked(
    scores: Tensor, places: Tensor, ends: Tensor, options: FlashOptions, slopes: Tensor | None
) -> Tensor:
    """Return scores with their biases, and minus infinity for keys that a query does not see.

    ``places`` are those of queries among the keys, ``(sequences or 1, queries, 1)``.
    """
    keys = torch.arange(scores.shape[-1])
    if slopes is not None:
        distances = (places - keys).abs()[:, None, None]
        slopes = slopes.float().view(-1, *scores.shape[1:3], 1, 1)
        scores = scores - slopes * distances
    seen = keys < ends[:, None, None]
    if options.sees_after >= 0:
        seen = seen & (keys <= places + options.sees_after)
    if options.left >= 0:
        seen = seen & (keys >= places - options.left)
    return scores.masked_fill(~seen[:, None, None], float("-inf"))


def rotated(
    x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, *, interleaved: bool, back: bool = False
) -> Tensor:
    """Return ``x``, ``(..., tokens, heads, size)``, rotated by the angles of the tokens' places.

    The first ``2 * cos.shape[-1]`` elements of a head are rotated: pairs of neighbours if
    ``interleaved``, else of the first half and the second. ``back`` turns the other way.
    """
    size = 2 * cos.shape[-1]
    of_tokens = [item[places].unsqueeze(-2).float() for item in (cos, sin)]
    cosines, sines = of_tokens[0], -of_tokens[1] if back else of_tokens[1]
    turned = x[..., :size].float()
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    pair = first * cosines - second * sines, first * sines + second * cosines
    flatten = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((flatten.to(x.dtype), x[..., size:]), -1)
