"""How many rows each expert of a rank gets, as the sources of mixture-of-experts rows draw it.

``balanced`` spreads a token's experts evenly. ``power_law_A`` draws the popularity of each expert
from a power law of exponent A, and times the rank with the most rows; sources average a few
draws, here the sorted loads of a few seeded draws are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kernbench.errors import UsageError
from validation.kernels import ExpertLoad

_DRAWS = 8
_SEED = 5
_Counts = NDArray[np.int64]


class Others(StrEnum):
    """What becomes of the rows of other ranks' experts."""

    TAKEN_OUT = "taken out"
    ZEROED = "zeroed"
    """They stay in place and are set to 0."""
    COMPUTED = "computed"
    """The rank's first expert computes them too."""


class Dealing(StrEnum):
    """Who gets the rows that are left when drawn popularities are rounded to whole rows.

    Decides how many experts have a row at all while tokens are few. A source's releases differ.
    """

    MOST_LOADED = "the experts with most rows"
    LEAST_LOADED = "the experts with fewest rows, the last one first: those of one rank"
    IN_TURN = "the experts with fewest rows, of each rank in turn"


@dataclass(frozen=True, slots=True)
class Routing:
    """What a row says about its tokens and experts."""

    tokens: int
    topk: int
    experts: int
    """Experts of all ranks."""
    ranks: int = 1
    distribution: str = "balanced"
    others: Others = Others.TAKEN_OUT
    own_tokens: bool = False
    """Whether only tokens that chose an expert of the rank are given to it."""
    dealing: Dealing = Dealing.IN_TURN


@cache
def load_of(routing: Routing) -> ExpertLoad:
    """Return the load of the rank that a source times: the first, or the one with most rows.

    Raises:
        UsageError: The distribution is neither ``balanced``, ``uniform`` nor ``power_law_A``.
    """
    if routing.distribution in ("balanced", "uniform"):
        draws = [_balanced(routing)]
    elif routing.distribution.startswith("power_law_"):
        alpha = float(routing.distribution.removeprefix("power_law_"))
        generator = np.random.default_rng(_SEED)
        draws = [_power_law(routing, alpha, generator) for _ in range(_DRAWS)]
    elif routing.distribution == "random":
        return _random(routing)
    else:
        raise UsageError(f"no load is called {routing.distribution!r}")
    return _averaged([_with_remote(routing, *draw) for draw in draws], routing)


def _averaged(draws: list[tuple[_Counts, int]], routing: Routing) -> ExpertLoad:
    """Return the load whose sorted rows are the draws' mean."""
    sorted_rows = np.array([np.sort(counts)[::-1] for counts, _ in draws])
    touched = round(float(np.mean(np.count_nonzero(sorted_rows, axis=1))))
    rows = np.maximum(np.rint(sorted_rows.mean(axis=0)[:touched]), 1).astype(np.int64)
    tokens = round(float(np.mean([number for _, number in draws])))
    total = int(rows.sum())
    slots = total if routing.others is Others.TAKEN_OUT else tokens * routing.topk
    return ExpertLoad(
        rows=tuple(rows.tolist()),
        tokens=tokens,
        routed=tokens * routing.topk,
        slots=max(slots, total),
    )


def _with_remote(routing: Routing, counts: _Counts, tokens: int) -> tuple[_Counts, int]:
    local = counts[: routing.experts // routing.ranks].copy()
    number = tokens if routing.own_tokens else routing.tokens
    if routing.others is Others.COMPUTED and routing.ranks > 1:
        local[0] += max(number * routing.topk - int(local.sum()), 0)
    return local, number


def _balanced(routing: Routing) -> tuple[_Counts, int]:
    tokens, topk, experts = routing.tokens, routing.topk, routing.experts
    stride = -(-experts // topk)
    first = np.arange(tokens)
    if tokens < stride:
        first = first * stride // tokens
    chosen = (first[:, None] + np.arange(topk) * stride) % experts
    local = (chosen < experts // routing.ranks).any(axis=1)
    return np.bincount(chosen.ravel(), minlength=experts), int(local.sum())


def _power_law(
    routing: Routing, alpha: float, generator: np.random.Generator
) -> tuple[_Counts, int]:
    tokens, topk, experts = routing.tokens, routing.topk, routing.experts
    least, most = (1.0, tokens * 0.8) if tokens * topk > experts else (0.01, 2.0)
    power = 1 - alpha
    uniform = generator.random(experts)
    drawn = ((most**power - least**power) * uniform + least**power) ** (1 / power)
    counts = np.rint(drawn / drawn.sum() * tokens * topk).astype(np.int64)
    if routing.dealing is not Dealing.MOST_LOADED:
        counts = np.minimum(counts, tokens)
    by_rank = counts.reshape(routing.ranks, -1)
    missing = tokens * topk - int(counts.sum())
    if routing.dealing is Dealing.IN_TURN:
        _adjust(by_rank, missing, tokens)
    elif routing.dealing is Dealing.LEAST_LOADED:
        _adjust_last(counts, missing, tokens)
    else:
        _adjust_first(counts, missing)
        counts = np.minimum(counts, tokens)  # a token chooses an expert once
        by_rank = counts.reshape(routing.ranks, -1)
    by_rank = by_rank[np.argsort(-by_rank.sum(axis=1), kind="stable")]
    counts = by_rank.ravel()
    return counts, _tokens_with(counts, experts // routing.ranks, tokens)


def _adjust(by_rank: _Counts, missing: int, most: int) -> None:
    """Add missing rows to the least loaded experts of each rank in turn, or take from the most."""
    step = 1 if missing > 0 else -1
    while missing:
        open_ = by_rank < most if step > 0 else by_rank > 0
        for rank in range(len(by_rank)):
            if not missing or not open_[rank].any():
                continue
            local = by_rank[rank]
            local[np.argmin(local) if step > 0 else np.argmax(local)] += step
            missing -= step
        if not open_.any():
            return


def _adjust_last(counts: _Counts, missing: int, most: int) -> None:
    """Add missing rows to the least loaded experts, or take them, the last of equals first."""
    order = np.argsort(-counts, kind="stable")[::-1]
    if missing > 0:
        while missing:
            open_ = order[counts[order] < most][:missing]
            counts[open_] += 1
            missing -= len(open_)
    for index in range(-missing):
        expert = order[index % len(order)]
        counts[expert if counts[expert] > 0 else np.argmax(counts)] -= 1


def _adjust_first(counts: _Counts, missing: int) -> None:
    """Add missing rows to the most loaded experts, one each, or take them from the least loaded."""
    order = np.argsort(-counts, kind="stable")
    for index in range(missing):
        counts[order[index % len(order)]] += 1
    for index in range(-missing):
        expert = order[-(index % len(order)) - 1]
        counts[expert if counts[expert] > 0 else np.argmax(counts)] -= 1


def _tokens_with(counts: _Counts, local: int, tokens: int) -> int:
    """Return how many tokens chose one of the first ``local`` experts.

    Experts take tokens one after another, the most popular first, and begin again with the first
    token after the last.
    """
    order = np.argsort(-counts, kind="stable")
    ends = np.cumsum(counts[order])
    starts = ends - counts[order]
    chosen = (order < local) & (counts[order] > 0)
    change = np.zeros(tokens + 1, dtype=np.int64)
    for start, count in zip(starts[chosen] % tokens, counts[order][chosen], strict=True):
        change[start] += 1
        change[min(start + count, tokens)] -= 1
        if start + count > tokens:
            change[0] += 1
            change[start + count - tokens] -= 1
    return int(np.count_nonzero(np.cumsum(change)[:tokens]))


def _random(routing: Routing) -> ExpertLoad:
    """Return the expected load where each token's experts are any, all equally likely."""
    share = routing.topk / routing.experts
    touched = max(round(routing.experts * (1 - (1 - share) ** routing.tokens)), 1)
    total = routing.tokens * routing.topk
    rows = [total // touched + (index < total % touched) for index in range(touched)]
    return ExpertLoad(rows=tuple(rows), tokens=routing.tokens, routed=total, slots=total)
