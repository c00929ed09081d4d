"""What samplers call: penalties, and the largest scores of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.replaced.extension_modules.definitions import streams


@streams(
    "apply_repetition_penalties_",
    takes="logits prompt_mask output_mask repetition_penalties",
    over=("logits",),
)
def _apply_repetition_penalties(call: OperatorCall) -> None:
    penalties = call.repetition_penalties.unsqueeze(1).where(
        call.prompt_mask | call.output_mask, 1.0
    )
    call.logits.copy_(
        torch.where(call.logits > 0, call.logits / penalties, call.logits * penalties)
    )


def _largest_of(logits: Tensor, begins: Tensor, ends: Tensor, indices: Tensor, most: int) -> None:
    """Write the places of rows' largest scores, from their begins on; -1 where there are less."""
    columns = torch.arange(logits.shape[1])
    there = (columns >= begins[:, None]) & (columns < ends[:, None])
    topk = logits.float().masked_fill(~there, float("-inf")).topk(min(most, logits.shape[1]), -1)
    indices.fill_(-1)
    places = torch.where(topk.values.isneginf(), -1, topk.indices - begins[:, None])
    indices[: len(places), : places.shape[1]] = places.to(indices.dtype)


@streams(
    "top_k_per_row_prefill", takes="logits rowStarts rowEnds indices numRows stride0 stride1 topK"
)
def _top_k_per_row(call: OperatorCall) -> None:
    rows = slice(call.numRows)
    begins, ends = call.rowStarts[rows], call.rowEnds[rows]
    _largest_of(call.logits[rows], begins, ends, call.indices, call.topK)


@streams(
    "top_k_per_row_decode", takes="logits next_n seq_lens indices numRows stride0 stride1 topK"
)
def _top_k_of_decode(call: OperatorCall) -> None:
    rows = torch.arange(call.numRows)
    ends = call.seq_lens.flatten()[rows // call.next_n] - call.next_n + rows % call.next_n + 1
    _largest_of(call.logits[: call.numRows], torch.zeros_like(ends), ends, call.indices, call.topK)
