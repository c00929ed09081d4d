"""Leaving out what pads sequences, and putting it back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Return some rows."""
    return x[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return zeros with values in some rows."""
    result = values.new_zeros(first_axis_dim, *values.shape[1:])
    return result.index_put((indices,), values)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Any, ...]:
    """Return the rows that a mask ``(batch, length)`` keeps, and where they are.

    Rows, their places, where sequences begin and end, the longest, and the number of tokens used.
    """
    mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = mask.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    ends = pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, ends, int(lengths.max().item()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return ``(batch, length, ...)`` with rows in their places, and zeros elsewhere."""
    axis = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return axis.unflatten(0, (batch, seqlen))
