"""Choices of unknown numbers, which a run without data takes to be even (ADR-0193).

How many tokens an expert gets decides shapes and splits. Routers are trained for even loads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kernbench.clock import user_site
from kernbench.torch_bridge.base.operations import PLAIN
from kernbench.torch_bridge.placement.residence import storage_of
from kernbench.torch_bridge.processes.process import current

CHOOSES = "aten.topk.default"
MOST_CHOSEN = 1 << 24
"""The largest tensor of such choices, or of what follows from them, whose values are kept."""


def dealt(args: Any, result: Any) -> Tensor | None:
    """Return what ``topk`` chooses of unknown rows: their columns, dealt out in turn.

    None where there are more columns than choices, as where tokens are sampled from a vocabulary.
    """
    value, chosen, dim = args[0], result[1], args[2] if len(args) > 2 else -1
    if value.dim() < 2 or dim % value.dim() != value.dim() - 1:
        return None
    choices = int(value.shape[-1])
    if not choices <= chosen.numel() <= MOST_CHOSEN:
        return None
    return torch.arange(chosen.numel()).remainder_(choices).view(chosen.shape)


@lru_cache(maxsize=64)
def drawn(tokens: int, count: int, choices: int) -> Tensor:
    """Return different experts for each of some tokens, all as likely: few leave some unread."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(tokens, max(choices, count), generator=generator).topk(count).indices


def place_of(values: Iterable[Any]) -> str | None:
    """Return where choices were made on which known values of nested arguments depend."""
    if not current().session.has_even_choices:
        return None
    for value in values:
        if type(value) is list or type(value) is tuple:
            place = place_of(value)
        elif type(value) in PLAIN and value.layout is torch.strided:
            place = getattr(getattr(storage_of(value), "_known", None), "chosen_at", None)
        else:
            continue
        if place is not None:
            return place
    return None


def mark(tensors: Iterable[Tensor], place: str | None) -> None:
    """Note of the known values of tensors that they depend on choices at this place, if at any."""
    if place is None:
        return
    for tensor in tensors:
        known = getattr(storage_of(tensor), "_known", None)
        if known is not None and known.nbytes() == storage_of(tensor).nbytes():
            known.chosen_at = place


def begin(chosen: Tensor) -> None:
    """Note where the program makes a choice that is taken to be even."""
    current().session.has_even_choices = True
    mark([chosen], str(user_site()))


def tell(values: Iterable[Any]) -> None:
    """Let the report name the choices on which values depend that decide something."""
    place = place_of(values)
    if place is not None:
        current().session.even_choices[place] = None
