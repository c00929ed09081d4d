"""Exchanges of rows among the ranks of mixtures of experts on one switch, as DeepEP makes them.

The kernel for prompts copies each token once to every rank that has one of its experts, by as many
PEs as it is given: a copy takes a time of its own and one per byte. The one for decode has a
group of warps for every expert: tokens go round over the PEs that groups fill, each token is
packed and then sent once for every expert that it chose, on links that all PEs share. What comes
before and after grows with the number of experts, whose counts are exchanged.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from kernbench.accuracy.validation.rows.reference import Row
from kernbench.errors import MachineError
from kernbench.hardware import Machine

_SAID = re.compile(
    r"tokens/rank (?P<tokens>\d+), hidden (?P<hidden>\d+), topk (?P<topk>\d+), "
    r"experts (?P<experts>\d+)(?:; SMs (?P<pes>\d+))?"
)
_ROW_BYTES, _PACKED_BYTES = 2.0, 1 + 4 / 128
"""Of an element: bfloat16, and float8 with a scale of 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExchange:
    """What a rank sends."""

    tokens: int
    hidden: int
    topk: int
    experts: int
    """Of all ranks."""
    ranks: int
    pes: int | None = None
    """That copy, where the source says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeConstants:
    """Of one architecture's exchanges, in microseconds; by hand, to rows of DeepEP on 8 ranks."""

    start_us: float
    copy_us: float
    """Of one token to one rank, by one PE."""
    byte_us: float
    least_us: float
    """Of the exchange for decode."""
    expert_us: float
    """For every expert."""
    token_us: float
    """To pack a token, and to begin to send it."""
    sent_byte_us: float
    link_share: float
    """Of the links' bandwidth that all PEs reach together."""


EXCHANGES = {
    "sm90": ExchangeConstants(
        start_us=27.4, copy_us=0.115, byte_us=2.16e-5,
        least_us=6.8, expert_us=0.0116, token_us=2.15, sent_byte_us=2.4e-5, link_share=0.609,
    ),
    "sm100": ExchangeConstants(
        start_us=35.5, copy_us=0.144, byte_us=2.11e-5,
        least_us=12.0, expert_us=0.0236, token_us=2.63, sent_byte_us=2.7e-5, link_share=0.562,
    ),
}  # fmt: skip
"""By architecture."""


def exchange_of(row: Row) -> ExpertExchange | None:
    """Return what a row's note says about an exchange; None where it says nothing."""
    said = _SAID.search(row.fields.get("note", ""))
    if said is None:
        return None
    found = {key: int(text) for key, text in said.groupdict().items() if text is not None}
    if not all(found.values()):
        return None
    return ExpertExchange(ranks=row.integer("n_ranks"), **found)


def dispatch_us(exchange: ExpertExchange, constants: ExchangeConstants) -> float:
    """Return the time of the exchange for prompts, by ``exchange.pes``."""
    assert exchange.pes is not None
    elsewhere = (1 - 1 / exchange.ranks) ** exchange.topk
    copies = exchange.tokens * exchange.ranks * (1 - elsewhere)
    each_us = constants.copy_us + constants.byte_us * exchange.hidden * _ROW_BYTES
    return constants.start_us + copies * each_us / exchange.pes


def decode_dispatch_us(
    exchange: ExpertExchange, constants: ExchangeConstants, machine: Machine
) -> float:
    """Return the time of the exchange for decode.

    Raises:
        MachineError: The machine has no links.
    """
    links = machine.spec.links
    if links is None:
        raise MachineError(f"machine {machine.name} has no links")
    groups = math.ceil(exchange.experts / machine.sip.num_pes)
    pes = math.ceil(exchange.experts / groups)
    sent = exchange.topk * exchange.hidden * _PACKED_BYTES
    each_us = constants.token_us + constants.sent_byte_us * sent
    own_us = math.ceil(exchange.tokens / pes) * each_us
    link_bytes_per_us = float(links.bandwidth_gbps) * 1e3 * constants.link_share
    before_us = constants.least_us + constants.expert_us * exchange.experts
    return before_us + max(own_us, exchange.tokens * sent / link_bytes_per_us)
