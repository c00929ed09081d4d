"""The definition of flex_attention, computed for some queries and their keys at a time.

PyTorch's own computes all scores at once: a gigabyte per head for 16,384 queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import math_attention

MOST_SCORES = 1 << 24
"""How many scores are computed at once, unless one block of queries has more."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A call of flex_attention, without its tensors."""

    score_mod: Callable[..., Tensor]
    block_mask: tuple[Any, ...]
    scale: float

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, and the log-sum-exp and the maximum of scores, in base 2.

        Operands are ``(batch, heads, length, size)``.
        """
        parts = [
            self._of(rows, keys, query[:, :, rows], key[:, :, keys], value[:, :, keys])
            for rows, keys in self._pieces(query, key)
        ]
        out, sums, largest = (torch.cat(pair, dim=2) for pair in zip(*parts, strict=True))
        return out, sums, largest

    def gradients(
        self, operands: Sequence[Tensor], learned: Sequence[Tensor], outer: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the gradients of query, key, value and ``learned``.

        ``outer`` are those of the results, None for results without one.
        """
        wide = torch.promote_types(operands[0].dtype, torch.float32)
        sums = [torch.zeros_like(operand, dtype=wide) for operand in operands]
        of_learned: list[Tensor | None] = [None] * len(learned)
        for rows, keys in self._pieces(*operands[:2]):
            places = (rows, keys, keys)
            part = [
                operand[:, :, place].detach().requires_grad_()
                for operand, place in zip(operands, places, strict=True)
            ]
            triple = self._of(rows, keys, *part)
            outputs = [
                (result, gradient[:, :, rows])
                for result, gradient in zip(triple[:2], outer, strict=False)
                if gradient is not None
            ]
            tensor = torch.autograd.grad(
                [result for result, _ in outputs],
                [*part, *learned],
                [gradient for _, gradient in outputs],
                allow_unused=True,
            )
            for total, place, item in zip(sums, places, tensor[:3], strict=True):
                if item is not None:
                    total[:, :, place] += item
            of_learned = [
                before if entry is None else entry if before is None else before + entry
                for before, entry in zip(of_learned, tensor[3:], strict=True)
            ]
        own = [total.to(operand.dtype) for total, operand in zip(sums, operands, strict=True)]
        return [*own, *(entry if entry is None else entry.contiguous() for entry in of_learned)]

    def _of(
        self, rows: slice, keys: slice, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the attention of one piece's operands."""
        *blocks, mask_mod = self.block_mask

        def score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return self.score_mod(score, b, h, q + rows.start, k + keys.start)

        def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            kept: Tensor = mask_mod(b, h, q + rows.start, k + keys.start)
            return kept

        tensors: tuple[Tensor, Tensor, Tensor] = math_attention(
            query, key, value, score, (*blocks, mask), self.scale, {}
        )
        return tensors

    def _pieces(self, query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
        """Yield ranges of queries to compute at a time, each with the range of its keys."""
        batch, heads, length = query.shape[:3]
        count = max(MOST_SCORES // max(batch * heads * key.size(2), 1), 1)
        if count >= length:
            yield slice(0, length), slice(0, key.size(2))
            return
        block = min(self.block_mask[-3], length)
        count = max(count // block * block, min(block, count))
        for start in range(0, length, count):
            rows = slice(start, min(start + count, length))
            yield rows, self._keys_of(rows, key.size(2))

    def _keys_of(self, rows: slice, length: int) -> slice:
        """Return the smallest range of whole key blocks that holds all keys of some queries."""
        partial, partial_at, full, full_at = self.block_mask[2:6]
        row_block, key_block = self.block_mask[-3:-1]
        first, last = length, 0
        for counts, places in ((partial, partial_at), (full, full_at)):
            if counts is None:
                continue
            blocks = slice(rows.start // row_block, (rows.stop - 1) // row_block + 1)
            counts, places = counts[..., blocks, None], places[..., blocks, :]
            seen = places[torch.arange(places.size(-1), device=places.device) < counts]
            if seen.numel():
                first = min(first, int(seen.min()) * key_block)
                last = max(last, (int(seen.max()) + 1) * key_block)
        return slice(first, min(last, length)) if first < last else slice(0, min(key_block, length))
