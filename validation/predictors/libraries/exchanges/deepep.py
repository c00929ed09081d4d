"""Exchanges of rows among the ranks of mixtures of experts, as DeepEP makes them.

The kernel for prompts copies each token once to every rank that has one of its experts, by as many
PEs as it is given: a copy takes a time of its own and one per byte. The one for decode has a
group of warps for every expert: tokens go round over the PEs that groups fill, each token is
packed and then sent once for every expert that it chose, on links that all PEs share. What comes
before and after grows with the number of experts, whose counts are exchanged.

Between nodes the kernel for prompts sends each token once to every node that has one of its
experts, on the network interface of the rank's place, and a PE there copies it to the node's ranks.
The one for decode sends each choice of a token to its rank, whatever the node; there it is bound by
the interface alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench.errors import MachineError
from kernbench.hardware import Machine
from validation.predictors.libraries.exchanges.asked import ExpertExchange, met

_ROW_BYTES, _PACKED_BYTES = 2.0, 1 + 4 / 128
"""Bytes of an element: bfloat16, and float8 with a scale of 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeConstants:
    """Of one architecture's exchanges, in microseconds; by hand, to rows of DeepEP on 8 ranks."""

    start_us: float
    copy_us: float
    """The copy of one token to one rank, by one PE."""
    byte_us: float
    least_us: float
    """The least time of an exchange for decode."""
    expert_us: float
    """For every expert."""
    token_us: float
    """To pack a token, and to begin to send it."""
    sent_byte_us: float
    link_share: float
    """The share of the links' bandwidth that all PEs reach together."""


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
"""Constants of exchanges within a node, by architecture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """What one direction of an exchange between nodes costs."""

    start_us: float
    doubling_us: float
    """Added for every doubling of the nodes."""
    pe_bytes_per_us: float
    """What one PE reads and writes of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RailConstants:
    """Of one architecture's exchanges between nodes; fitted to rows of curves not kept apart."""

    dispatch: Transport
    combine: Transport
    interface_share: float
    """The share of a network interface that prompts' rows reach."""
    filling_tokens: float
    """Tokens that fill a channel, which two PEs serve: rows that PEs and interfaces move one after
    the other, before the first of them have arrived and both work at once."""
    calm_nodes: int
    """Above that many, interfaces slow down when their queues in the network are full."""
    crowded_share: float
    """The part of ``interface_share`` that they reach then."""
    calm_us: float
    """What the queues take in before, as time at the crowded rate."""
    decode_start_us: float
    decode_doubling_us: float
    decode_dispatch_share: float
    """The share of a network interface."""
    decode_combine_share: float


RAILS = {
    "sm90": RailConstants(
        dispatch=Transport(start_us=33.0, doubling_us=2.17, pe_bytes_per_us=17_050),
        combine=Transport(start_us=42.7, doubling_us=6.21, pe_bytes_per_us=12_930),
        interface_share=0.951, filling_tokens=14.4,
        calm_nodes=4, crowded_share=0.469, calm_us=64.8,
        decode_start_us=23.9, decode_doubling_us=1.34,
        decode_dispatch_share=0.974, decode_combine_share=0.927,
    ),
}  # fmt: skip
"""Constants of exchanges between nodes, by architecture. That eight nodes are slower for prompts
alone, and with any number of PEs, is a property of the one network that was measured."""


def prompts_us(exchange: ExpertExchange, constants: ExchangeConstants) -> float:
    """Return the time of the exchange for prompts on one switch, by ``exchange.pes``."""
    assert exchange.pes is not None
    copies = exchange.tokens * met(exchange.ranks, exchange.topk)
    each_us = constants.copy_us + constants.byte_us * exchange.hidden * _ROW_BYTES
    return constants.start_us + copies * each_us / exchange.pes


def prompts_between_us(
    exchange: ExpertExchange, constants: RailConstants, port_bytes_per_us: float
) -> float:
    """Return the time of the exchange for prompts between nodes, by ``exchange.pes``.

    ``port_bytes_per_us`` is the bandwidth of a rank's network interface.
    """
    assert exchange.pes is not None
    way = constants.combine if exchange.gathers else constants.dispatch
    nodes = met(exchange.nodes, exchange.topk)
    away = nodes * (1 - 1 / exchange.nodes)
    copied_us = (nodes + met(exchange.ranks, exchange.topk)) * _row_bytes(exchange)
    copied_us *= exchange.tokens / (way.pe_bytes_per_us * exchange.pes)
    sent_us = exchange.tokens * away * _row_bytes(exchange)
    sent_us /= port_bytes_per_us * constants.interface_share
    if exchange.nodes > constants.calm_nodes:
        sent_us = max(sent_us, sent_us / constants.crowded_share - constants.calm_us)
    one_by_one = min(1.0, constants.filling_tokens * exchange.pes / 2 / exchange.tokens)
    start_us = way.start_us + way.doubling_us * math.log2(exchange.nodes)
    return start_us + max(copied_us, sent_us) + one_by_one * min(copied_us, sent_us)


def decode_us(exchange: ExpertExchange, constants: ExchangeConstants, machine: Machine) -> float:
    """Return the time of the exchange for decode on one switch.

    Raises:
        MachineError: The machine has no links.
    """
    links = machine.spec.links
    if links is None:
        raise MachineError(f"machine {machine.name} has no links")
    groups = math.ceil(exchange.experts / machine.sip.num_pes)
    pes = math.ceil(exchange.experts / groups)
    sent = exchange.topk * _row_bytes(exchange)
    each_us = constants.token_us + constants.sent_byte_us * sent
    own_us = math.ceil(exchange.tokens / pes) * each_us
    link_bytes_per_us = float(links.bandwidth_gbps) * 1e3 * constants.link_share
    before_us = constants.least_us + constants.expert_us * exchange.experts
    return before_us + max(own_us, exchange.tokens * sent / link_bytes_per_us)


def decode_between_us(
    exchange: ExpertExchange, constants: RailConstants, port_bytes_per_us: float
) -> float:
    """Return the time of the exchange for decode between nodes."""
    share = constants.decode_combine_share if exchange.gathers else constants.decode_dispatch_share
    away = exchange.topk * (1 - 1 / exchange.nodes) * _row_bytes(exchange)
    start_us = constants.decode_start_us
    start_us += constants.decode_doubling_us * math.log2(exchange.nodes)
    return start_us + exchange.tokens * away / (port_bytes_per_us * share)


def _row_bytes(exchange: ExpertExchange) -> float:
    """Return the bytes of a token: packed on the way to experts, and as it is from there."""
    return exchange.hidden * (_ROW_BYTES if exchange.gathers else _PACKED_BYTES)
