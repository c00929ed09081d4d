"""Exchanges of the rows of experts among the ranks of a mixture, on the links of a machine.

A kernel copies each token by its PEs: one row to each rank that has one of its experts, or one for
each choice. Between nodes a row goes straight to its rank, or, in pieces, once to each node over
the network interface of the sender's place, and there on to the ranks; outputs of experts come the
other way. Links carry what PEs copy at the rate of the slower of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from kernbench.collectives import Index, Schedule, Step
from kernbench.errors import MachineError, UnknownNameError, UsageError, nearest
from kernbench.hardware import ExchangeKernel, Machine, ProtocolSpec, load_exchanges
from kernbench.links.routed_schedule import build_link_plan
from kernbench.links.transfer_times import run_on_links


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExchange:
    """What each of ``ranks`` sends. All are at least 1."""

    tokens: int
    row_bytes: float
    """Bytes of a token on the way, scales included."""
    topk: int
    experts: int
    """Experts of all ranks."""
    ranks: int
    pes: int | None = None
    """PEs that copy; as many as groups of warps fill, one for each expert, when missing."""
    gathers: bool = False
    """Whether outputs of experts come back, of which the ranks of a token make one."""
    balanced: bool = False
    """Whether the choices of a token are of as many ranks as there can be, not random ones."""

    def __post_init__(self) -> None:
        for name in ("tokens", "row_bytes", "topk", "experts", "ranks", "pes"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise UsageError(f"{name} must be at least 1, but got {value}")
        if self.topk > self.experts:
            raise UsageError(f"topk is {self.topk}, but there are {self.experts} experts")
        if self.experts < self.ranks:
            raise UsageError(f"{self.experts} experts leave some of {self.ranks} ranks without one")

    def met(self, places: int) -> float:
        """Return how many of so many places have an expert that a token chose, on average.

        >>> asked = ExpertExchange(tokens=1, row_bytes=2, topk=2, experts=4, ranks=4)
        >>> asked.met(1), round(asked.met(2), 3), asked.met(4)
        (1.0, 1.667, 2.0)
        """
        if self.balanced:
            return float(min(places, self.topk))
        elsewhere = self.experts - self.experts // places
        return places * (1 - math.comb(elsewhere, self.topk) / math.comb(self.experts, self.topk))


def exchange_kernel(machine: Machine, name: str, ranks: int) -> ExchangeKernel:
    """Return the constants of a library's kernel among so many ranks, on one node or several.

    Raises:
        UnknownNameError: Nothing is known of it on the machine's architecture.
    """
    known = load_exchanges(machine.spec.kernel_library)
    full = f"{name}_between" if ranks > machine.sips_per_node else name
    if full not in known:
        what = nearest(full, known) if known else f"none is known on {machine.name}"
        raise UnknownNameError(f"unknown exchange {full!r}: {what}")
    return known[full]


def exchange_ps(machine: Machine, exchange: ExpertExchange, kernel: ExchangeKernel) -> int:
    """Return the time of an exchange on the idle links of a machine, in ps.

    Raises:
        MachineError: The machine has no links.
        UsageError: The ranks are more than its SIPs, or no whole nodes.
    """
    links, ranks = machine.spec.links, exchange.ranks
    if links is None:
        raise MachineError(f"machine {machine.name} has no links")
    if ranks > machine.num_sips:
        raise UsageError(
            f"{ranks} ranks were asked for, but machine {machine.name} has {machine.num_sips} "
            "SIPs, one per rank"
        )
    per_node = min(machine.sips_per_node, ranks)
    if ranks % per_node:
        raise UsageError(f"{ranks} ranks are not whole nodes of {per_node}")
    nodes = ranks // per_node
    by_rails = nodes > 1 and kernel.filling_tokens > 0
    schedule = _build_schedule(exchange, kernel, per_node, by_rails)
    crowd = kernel.crowding * Fraction(max(math.log2(ranks) - 3, 0))
    share = kernel.link_share / (1 + crowd)
    # What leaves a rank by the links of its node.
    rows = _rows(exchange, kernel) * (per_node - 1) / (per_node if by_rails else ranks)
    inside_us = rows * exchange.tokens * exchange.row_bytes / float(links.bandwidth_gbps) / 1e3
    if kernel.pe_gbps is not None and inside_us:
        copied = _rows(exchange, kernel) + (exchange.met(nodes) if by_rails else 0)
        copies_us = _copies_us(machine, exchange, kernel, copied)
        share = min(share, Fraction(inside_us / copies_us))
    token_us = max(kernel.token_us, kernel.least_token_us - Fraction(inside_us / exchange.tokens))
    protocol = ProtocolSpec(
        launch_us=kernel.launch_us
        + kernel.doubling_us * Fraction(math.log2(nodes if nodes > 1 else ranks))
        + kernel.expert_us * exchange.experts
        + token_us * exchange.tokens,
        bandwidth_share=share,
        network_share=_network_share(machine, exchange, kernel, nodes),
        pipeline_kib=Fraction(_piece_bytes(exchange, kernel) / 1024) if by_rails else None,
    )
    plan = build_link_plan(schedule, machine, range(ranks), protocol)
    idle = np.zeros(plan.num_links, dtype=np.int64)
    return int(run_on_links(plan, np.zeros(ranks, dtype=np.int64), idle).ends_ps.max())


def _rows(exchange: ExpertExchange, kernel: ExchangeKernel) -> float:
    """Return how many rows of a token arrive at ranks, its own included."""
    return exchange.topk if kernel.each_choice else exchange.met(exchange.ranks)


def _copies_us(
    machine: Machine, exchange: ExpertExchange, kernel: ExchangeKernel, rows: float
) -> float:
    """Return how long PEs copy so many rows of each token."""
    assert kernel.pe_gbps is not None
    groups = math.ceil(exchange.experts / machine.sip.num_pes)
    pes = exchange.pes or math.ceil(exchange.experts / groups)
    row_us = float(kernel.pe_row_us) + exchange.row_bytes / float(kernel.pe_gbps) / 1e3
    packed_us = math.ceil(exchange.tokens / pes) * float(kernel.pe_token_us)
    return packed_us + exchange.tokens / pes * rows * row_us


def _network_share(
    machine: Machine, exchange: ExpertExchange, kernel: ExchangeKernel, nodes: int
) -> Fraction:
    """Return what rows reach of a network interface, less when queues in the network are full."""
    share = kernel.network_share
    if kernel.crowded_nodes is None or nodes < kernel.crowded_nodes:
        return share
    assert machine.spec.links is not None
    assert machine.spec.links.scale_out is not None
    outer = machine.spec.links.scale_out
    port_gbps = outer.port_gbps * outer.ports_per_node / outer.sips_per_node
    rows = exchange.tokens * exchange.met(nodes) * (1 - 1 / nodes)
    sent_us = Fraction(rows * exchange.row_bytes) / (port_gbps * share * 1000)
    late_us = sent_us / kernel.crowded_share - kernel.calm_us
    return share * sent_us / max(sent_us, late_us)


def _piece_bytes(exchange: ExpertExchange, kernel: ExchangeKernel) -> float:
    channels = max((exchange.pes or 2) / 2, 1)
    return float(kernel.filling_tokens) * channels * exchange.row_bytes


def _build_schedule(
    exchange: ExpertExchange, kernel: ExchangeKernel, per_node: int, by_rails: bool
) -> Schedule:
    """Return who sends how many bytes to whom: all in one round, or by rails in two."""
    ranks = np.arange(exchange.ranks, dtype=np.int32)
    row = exchange.tokens * exchange.row_bytes
    nodes = exchange.ranks // per_node
    to_rank = math.ceil(_rows(exchange, kernel) / exchange.ranks * row * (nodes if by_rails else 1))
    to_node = math.ceil(exchange.met(nodes) / nodes * row)
    places = [(node, place) for node in range(nodes) for place in range(per_node)][1:]
    if by_rails:
        inside = _in_one_round(ranks, per_node, [place for place in places if not place[0]], 0)
        between = _in_one_round(ranks, per_node, [place for place in places if not place[1]], 1)
        steps = (*inside, *between) if exchange.gathers else (*between, *inside)
    else:
        steps = _in_one_round(ranks, per_node, places, 0)
    return Schedule(
        op="all_to_all",
        algorithm="rails" if by_rails else "one_shot",
        num_ranks=exchange.ranks,
        num_elements=to_rank,
        itemsize=1,
        chunk_bounds=np.array([0, to_rank, to_rank + to_node], dtype=np.int64),
        steps=steps,
        ranks_per_node=per_node,
        pipelined=by_rails,
    )


def _in_one_round(
    ranks: Index, per_node: int, shifts: list[tuple[int, int]], chunk: int
) -> tuple[Step, ...]:
    """Return the steps in which each rank sends a chunk so many nodes and places further on.

    In this order no two ranks send to the same one at a time.
    """
    node, place = np.divmod(ranks, per_node)
    nodes = len(ranks) // per_node
    targets = ((node + up) % nodes * per_node + (place + on) % per_node for up, on in shifts)
    chunks = np.full_like(ranks, chunk)
    return tuple(
        Step(ranks, target, chunks, reduce=False, concurrent=number > 0)
        for number, target in enumerate(targets)
    )
