"""Which algorithm and protocol a collective takes on a machine, and what the others would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from kernbench.collectives import (
    AUTO,
    Counts,
    Schedule,
    algorithm_class,
    build,
    for_small_groups,
    known_algorithms,
    nccl_covers,
    nccl_estimates,
    refusal,
    serves_groups_of,
)
from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.hardware import PLAIN_PROTOCOL, Machine, ProtocolSpec
from kernbench.links.idle_times import IdleTimes, least_ps
from kernbench.links.recent import Recent
from kernbench.links.routed_schedule import LinkPlan

Sips = tuple[int, ...]
PLAIN = ""
"""The protocol of a machine without a collective library."""

ACROSS_NODES = ("ring", "rail_tree")
"""The algorithms of NCCL and RCCL between nodes, for operations that have them."""

_MOST_CHOICES = 4096
_LARGE_GROUP = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """A collective that needs an algorithm and a protocol."""

    op: str
    num_ranks: int
    num_elements: int
    itemsize: int
    root: int = 0
    counts: Counts = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to do a collective on given SIPs."""

    algorithm: str
    protocol: str
    ranks_per_node: int
    time_ps: int | None = None
    """Modeled time on idle links; None where it was not computed."""
    why_not: str = ""
    """Why it cannot be taken; empty if it can."""
    chosen_by: str = ""
    """``name``, ``nccl`` or ``modeled time``, for the one that was chosen."""

    def build(self, asked: Asked) -> Schedule:
        """Return the schedule."""
        return build(
            asked.op,
            self.algorithm,
            asked.num_ranks,
            asked.num_elements,
            asked.itemsize,
            asked.root,
            asked.counts,
            self.ranks_per_node,
        )


class Selector:
    """Chooses for one machine. What was chosen before is remembered."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.idle_times = IdleTimes(machine)
        equal = machine.with_equal_links
        # Who chooses does not know that links are slow.
        self._expected = self.idle_times if equal is machine else IdleTimes(equal)
        self._library = machine.spec.collectives
        self._known: Recent[tuple[Asked, Sips, str, str], Choice] = Recent(_MOST_CHOICES)

    def choose(
        self, asked: Asked, sips: Sips, algorithm: str = AUTO, protocol: str = AUTO
    ) -> Choice:
        """Return the algorithm and protocol for ranks on ``sips``.

        What is named is taken. Of the rest the vendor's table decides if the machine has one that
        covers the op and the ranks share a node, else the modeled time on idle links.

        Raises:
            UnknownNameError: There is no such algorithm or protocol.
            UsageError: It cannot serve this group or message.
        """
        key = (asked, sips, algorithm, protocol)
        return self._known.get(key, lambda: self._choose(*key))

    def table(self, asked: Asked, sips: Sips) -> list[Choice]:
        """Return every way to do the collective: with its time, or why it cannot be done."""
        return [
            choice if choice.why_not else self._timed(asked, sips, choice)
            for choice in self._candidates(asked, sips, AUTO, AUTO)
        ]

    def bracket(self, asked: Asked, sips: Sips, choice: Choice) -> tuple[int, int]:
        """Return the time of a choice on idle links, and a lower bound of it.

        Both in ps. The second is the time that the busiest link is busy, or that what a rank sends
        and waits for takes without any other.
        """
        plan = self._plan(asked, sips, choice, self.idle_times)
        timing = self.idle_times.timing(plan, choice.protocol)
        assert timing is not None
        busiest_ps = int(timing.busy_ps.max(initial=0))
        return int(timing.ends_ps.max(initial=0)), max(least_ps(plan), busiest_ps)

    def protocol(self, op: str, algorithm: str, name: str) -> ProtocolSpec:
        """Return what a protocol costs in an algorithm; ``PLAIN`` is one that costs nothing."""
        return PLAIN_PROTOCOL if name == PLAIN else self._protocols(op, algorithm)[name]

    def _choose(self, asked: Asked, sips: Sips, algorithm: str, protocol: str) -> Choice:
        candidates = self._candidates(asked, sips, algorithm, protocol)
        fitting = [candidate for candidate in candidates if not candidate.why_not]
        if not fitting:
            reasons = dict.fromkeys(
                f"{item.algorithm}{'/' * bool(item.protocol)}{item.protocol} {item.why_not}"
                for item in candidates
            )
            raise UsageError(
                f"{asked.op} of {asked.num_elements * asked.itemsize} bytes on {asked.num_ranks} "
                f"ranks of {self.machine.name}: {'; '.join(reasons)}"
            )
        if len(fitting) == 1:
            by = "name" if AUTO not in (algorithm, protocol) else "only one"
            return _chosen(fitting[0], by)
        if algorithm == AUTO:
            by_vendor = self._of_vendor(asked, sips, fitting)
            if by_vendor is not None:
                return by_vendor
            fitting = self._worth_timing(asked, sips, fitting)
        return _chosen(self._fastest(asked, sips, fitting), "modeled time")

    def _worth_timing(self, asked: Asked, sips: Sips, fitting: list[Choice]) -> list[Choice]:
        """Return those that may be chosen: what a vendor's library has, and what scales."""
        if self._library is not None and len(_by_node(self.machine, sips)) > 1:
            known = [choice for choice in fitting if choice.algorithm in ACROSS_NODES]
            fitting = known or fitting
        n = asked.num_ranks
        scale = [choice for choice in fitting if serves_groups_of(asked.op, choice.algorithm, n)]
        if n > _LARGE_GROUP:
            scale = [choice for choice in scale if not for_small_groups(asked.op, choice.algorithm)]
        return scale or fitting[:1]

    def _fastest(self, asked: Asked, sips: Sips, fitting: list[Choice]) -> Choice:
        """Return the choice with the least modeled time, the first of equal ones."""
        by_bound = sorted(
            (
                (least_ps(self._plan(asked, sips, choice)), place, choice)
                for place, choice in enumerate(fitting)
            ),
            key=lambda it: it[:2],
        )
        best: tuple[int, int, Choice] | None = None
        for bound_ps, place, choice in by_bound:
            # What cannot be faster is not timed, and what turns out slower not to its end.
            if best is not None and bound_ps > best[0]:
                break
            timed = self._timed(asked, sips, choice, None if best is None else best[0])
            if timed.time_ps is not None:
                triple = (timed.time_ps, place, timed)
                best = triple if best is None else min(best, triple, key=lambda it: it[:2])
        assert best is not None
        return best[2]

    def _of_vendor(self, asked: Asked, sips: Sips, fitting: list[Choice]) -> Choice | None:
        """Return the vendor's favourite among those that can be taken, None if it has none."""
        if self._library is None or len(_by_node(self.machine, sips)) > 1:
            return None
        if self._library.nccl is not None and not nccl_covers(asked.op):
            # NCCL makes these of sends and receives, by size alone.
            return _chosen(fitting[0], "nccl")
        size_bytes = asked.num_elements * asked.itemsize
        for line in nccl_estimates(asked.op, asked.num_ranks, size_bytes, self._library):
            for choice in fitting:
                if (choice.algorithm, choice.protocol) == (line.algorithm, line.protocol):
                    return _chosen(choice, "nccl")
        return None

    def _candidates(self, asked: Asked, sips: Sips, algorithm: str, protocol: str) -> list[Choice]:
        known = known_algorithms(asked.op)
        if algorithm != AUTO and algorithm not in known:
            raise UnknownNameError(
                f"unknown algorithm {algorithm!r} of {asked.op}: {nearest(algorithm, known)}"
            )
        sizes = {len(node) for node in _by_node(self.machine, sips)}
        # How many ranks in a row share each node, 0 where that differs.
        per_node = sizes.pop() if len(sizes) == 1 else 0
        candidates = []
        for name in known if algorithm == AUTO else (algorithm,):
            protocols = self._protocols(asked.op, name)
            if protocol != AUTO and protocol not in protocols and self._library is not None:
                every = sorted({*self._library.protocols, *protocols})
                if protocol not in every:
                    raise UnknownNameError(
                        f"unknown protocol {protocol!r} of {self.machine.name}: "
                        f"{nearest(protocol, every)}"
                    )
                candidates.append(Choice(name, protocol, per_node, None, "has no such protocol"))
                continue
            if protocol != AUTO and self._library is None:
                raise UsageError(
                    f"machine {self.machine.name} has no protocols (its file has no collectives), "
                    f"but protocol {protocol!r} was asked"
                )
            for item in protocols if protocol == AUTO else (protocol,):
                why_not = self._why_not(asked, sips, name, item, per_node)
                candidates.append(Choice(name, item, per_node, None, why_not))
            if not protocols:
                why_not = f"needs a switch that reduces; {self.machine.name} has none"
                candidates.append(Choice(name, PLAIN, per_node, None, why_not))
        return candidates

    def _protocols(self, op: str, algorithm: str) -> Mapping[str, ProtocolSpec]:
        moves = algorithm_class(op, algorithm)
        if self._library is None:
            return {} if moves == "in_switch" else {PLAIN: PLAIN_PROTOCOL}
        return self._library.of_class(moves)

    def _why_not(
        self, asked: Asked, sips: Sips, algorithm: str, name: str, ranks_per_node: int
    ) -> str:
        refused = refusal(asked.op, algorithm, asked.num_ranks, ranks_per_node)
        if refused:
            return refused
        protocol = self._protocols(asked.op, algorithm)[name]
        if protocol.only_up_to_ranks is not None and asked.num_ranks > protocol.only_up_to_ranks:
            return f"serves at most {protocol.only_up_to_ranks} ranks"
        if self._library is not None and len(_by_node(self.machine, sips)) > 1:
            moves = algorithm_class(asked.op, algorithm)
            if moves in ("peer", "in_switch"):
                return "serves ranks of one node"
        part = asked.num_elements * asked.itemsize // max(asked.num_ranks, 1)
        if protocol.max_chunk_kib is not None and part > protocol.max_chunk_kib * 1024:
            return (
                f"serves parts of at most {float(protocol.max_chunk_kib):g} KiB, not {part} bytes"
            )
        return ""

    def _timed(
        self, asked: Asked, sips: Sips, choice: Choice, limit_ps: int | None = None
    ) -> Choice:
        """Return the choice with its modeled time, without one if that is above the limit."""
        timing = self._expected.timing(self._plan(asked, sips, choice), choice.protocol, limit_ps)
        time_ps = None if timing is None else int(timing.ends_ps.max(initial=0))
        return Choice(choice.algorithm, choice.protocol, choice.ranks_per_node, time_ps)

    def _plan(
        self,
        asked: Asked,
        sips: Sips,
        choice: Choice,
        idle_times: IdleTimes | None = None,
    ) -> LinkPlan:
        protocol = self.protocol(asked.op, choice.algorithm, choice.protocol)
        idle_times = idle_times or self._expected
        return idle_times.plan(choice.build(asked), sips, choice.protocol, protocol)


def _chosen(choice: Choice, by: str) -> Choice:
    return Choice(choice.algorithm, choice.protocol, choice.ranks_per_node, choice.time_ps, "", by)


def _by_node(machine: Machine, sips: Sips) -> list[list[int]]:
    """Return the runs of SIPs that share a node."""
    size = machine.sips_per_node
    return [list(run) for _, run in groupby(sips, key=lambda sip: sip // size)]
