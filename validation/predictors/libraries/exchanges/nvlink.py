"""Exchanges of experts' rows in an NVLink domain of many hosts, as TensorRT-LLM makes them.

A token goes once to every rank that has one of its experts; tokens are balanced over ranks. The
two-sided kernels pass rows through a queue per peer, whose rate falls where a domain has many
peers, and count before (``prepare``); the one-sided ones store into their peers' memory. The sum
over the ranks of a token is another kernel's after a two-sided exchange, which also unpacks rows of
low precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from validation.predictors.libraries.exchanges.asked import ExpertExchange

_ITEM_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5 + 1 / 16}
"""With one scale of a byte for every 16 elements of nvfp4."""
OUTPUT = "bfloat16"
"""The dtype of experts' output, unless it is packed."""
_PACKED = "nvfp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConstants:
    """Of two-sided exchanges, in microseconds; fitted to rows of curves not kept apart."""

    count_us: float
    """The time of ``prepare`` before the first token, and for every doubling of the ranks."""
    count_doubling_us: float
    count_token_us: float
    """The time to count one token; counters of few ranks are in each other's way."""
    count_token_doubling_us: float
    """Less for every doubling of the ranks."""
    dispatch_us: float
    dispatch_doubling_us: float
    combine_us: float
    combine_doubling_us: float
    token_us: float
    least_token_us: float
    """What a token takes at least, however few bytes it has."""
    link_share: float
    """The share of the links' bandwidth."""
    crowding: float
    """How much longer bytes take for every doubling of the ranks above 8."""
    sum_us: float
    """The time of a token's sum."""
    unpack_us: float
    """The same of rows of low precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConstants:
    """Of one-sided exchanges, likewise."""

    dispatch_us: float
    combine_us: float
    doubling_us: float
    """The time of either for every doubling of the ranks."""
    link_share: float


QUEUES = {
    "sm100": QueueConstants(
        count_us=10.9, count_doubling_us=0.76,
        count_token_us=0.0073, count_token_doubling_us=0.0002,
        dispatch_us=11.25, dispatch_doubling_us=0.36, combine_us=12.7, combine_doubling_us=0.82,
        token_us=0.0155, least_token_us=0.0398, link_share=0.725, crowding=0.0425,
        sum_us=0.0196, unpack_us=0.098,
    ),
}  # fmt: skip
"""Constants of queues, by architecture."""

STORES = {
    "sm100": StoreConstants(dispatch_us=7.9, combine_us=11.4, doubling_us=3.48, link_share=0.733)
}
"""Constants of stores, by architecture."""


def prepare_us(exchange: ExpertExchange, constants: QueueConstants) -> float:
    """Return the time to count the rows for every rank, before a two-sided exchange."""
    doublings = math.log2(exchange.ranks)
    token_us = constants.count_token_us - constants.count_token_doubling_us * doublings
    start_us = constants.count_us + constants.count_doubling_us * doublings
    return start_us + exchange.tokens * token_us


def queued_us(
    exchange: ExpertExchange, constants: QueueConstants, dtype: str, gbps: float, packs: bool
) -> float:
    """Return the time of a two-sided exchange of elements of a dtype.

    ``gbps`` is the bandwidth of a rank's links; ``packs`` says that outputs come back in low
    precision.
    """
    doublings = math.log2(exchange.ranks)
    sent = _sent_bytes(exchange, _PACKED if packs else dtype)
    sent_us = sent / (gbps * 1e3 * constants.link_share)
    sent_us *= 1 + constants.crowding * max(doublings - 3, 0)
    token_us = max(constants.least_token_us, constants.token_us + sent_us)
    if not exchange.gathers:
        start_us = constants.dispatch_us + constants.dispatch_doubling_us * doublings
        return start_us + exchange.tokens * token_us
    token_us += constants.unpack_us if packs else constants.sum_us
    start_us = constants.combine_us + constants.combine_doubling_us * doublings
    return start_us + exchange.tokens * token_us


def stored_us(
    exchange: ExpertExchange, constants: StoreConstants, dtype: str, gbps: float
) -> float:
    """Return the time of a one-sided exchange."""
    start_us = constants.combine_us if exchange.gathers else constants.dispatch_us
    start_us += constants.doubling_us * math.log2(exchange.ranks)
    sent = _sent_bytes(exchange, dtype)
    return start_us + exchange.tokens * sent / (gbps * 1e3 * constants.link_share)


def knows(dtype: str) -> bool:
    """Return whether the bytes of an element are known."""
    return dtype in _ITEM_BYTES


def _sent_bytes(exchange: ExpertExchange, dtype: str) -> float:
    """Return what a token sends to other ranks, with elements of a dtype."""
    ranks, choices = exchange.ranks, exchange.topk
    others = ranks - 1 if ranks <= choices else choices * (1 - 1 / ranks)
    return others * exchange.hidden * _ITEM_BYTES[dtype]
