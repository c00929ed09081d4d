"""What samplers call: penalties, and the largest scores of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.torch_bridge.replaced.extension_modules.definitions import streams


@streams("apply_repetition_penalties_", over=("logits",))
def _apply_repetition_penalties(
    logits: Tensor, prompt_mask: Tensor, output_mask: Tensor, repetition_penalties: Tensor
) -> None:
    penalties = repetition_penalties.unsqueeze(1).where(prompt_mask | output_mask, 1.0)
    logits.copy_(torch.where(logits > 0, logits / penalties, logits * penalties))


def _largest_of(logits: Tensor, begins: Tensor, ends: Tensor, indices: Tensor, most: int) -> None:
    """Write the places of rows' largest scores, from their begins on; -1 where there are less."""
    columns = torch.arange(logits.shape[1])
    there = (columns >= begins[:, None]) & (columns < ends[:, None])
    topk = logits.float().masked_fill(~there, float("-inf")).topk(min(most, logits.shape[1]), -1)
    indices.fill_(-1)
    places = torch.where(topk.values.isneginf(), -1, topk.indices - begins[:, None])
    indices[: len(places), : places.shape[1]] = places.to(indices.dtype)


@streams("top_k_per_row_prefill")
def _top_k_per_row(
    logits: Tensor,
    rowStarts: Tensor,  # noqa: N803
    rowEnds: Tensor,  # noqa: N803
    indices: Tensor,
    numRows: int,  # noqa: N803
    stride0: int,
    stride1: int,
    topK: int,  # noqa: N803
) -> None:
    _largest_of(logits[:numRows], rowStarts[:numRows], rowEnds[:numRows], indices, topK)


@streams("top_k_per_row_decode")
def _top_k_of_decode(
    logits: Tensor,
    next_n: int,
    seq_lens: Tensor,
    indices: Tensor,
    numRows: int,  # noqa: N803
    stride0: int,
    stride1: int,
    topK: int,  # noqa: N803
) -> None:
    rows = torch.arange(numRows)
    ends = seq_lens.flatten()[rows // next_n] - next_n + rows % next_n + 1
    _largest_of(logits[:numRows], torch.zeros_like(ends), ends, indices, topK)
