"""The collectives, by op and algorithm, and the function that plans one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from kernbench.collectives import (
    barrier,
    direct,
    double_tree,
    exchange,
    halving,
    hierarchical,
    in_switch,
    rails,
    ring,
    tree,
)
from kernbench.collectives.plan import Plan, Request
from kernbench.collectives.schedule import Counts, Schedule
from kernbench.errors import UnknownNameError, UsageError, nearest

Builder = Callable[[Request], Plan]
AlgorithmClass = Literal["chained", "point_to_point", "peer", "in_switch"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How an algorithm does one op, and what it requires."""

    build: Builder
    moves: AlgorithmClass = "chained"
    """Block to block, by send and receive, by stores into peers' memory, or through the switch."""
    power_of_two: bool = False
    """Whether the number of ranks must be a power of two."""
    for_small_groups: bool = False
    """Whether large groups do not choose it: it takes long to time, and another one serves them."""
    by_node: bool = False
    """Whether the group must be whole nodes, more than one of them."""
    least_per_node: int = 2
    """Ranks of each."""
    most_ranks: int | None = None
    """The largest group that chooses it, where it is modeled step by step."""
    striped: bool = False
    pipelined: bool = False
    fold: bool = False
    """Whether every rank gets all contributions and combines them itself, as in ``Schedule``."""


MOST_IN_A_RING = 4096
"""Steps of a ring times its ranks grow with the square of their number."""

# The first algorithm of an op is the one that "auto" takes where no machine says more.
_ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm(ring.all_reduce, striped=True, most_ranks=MOST_IN_A_RING),
        "direct": Algorithm(direct.all_reduce, for_small_groups=True),
        "tree": Algorithm(tree.all_reduce),
        "bidirectional_ring": Algorithm(ring.bidirectional_all_reduce),
        "double_tree": Algorithm(double_tree.all_reduce),
        "halving_doubling": Algorithm(halving.all_reduce),
        "one_shot": Algorithm(direct.one_shot_all_reduce, "peer", for_small_groups=True, fold=True),
        "two_shot": Algorithm(direct.two_shot_all_reduce, "peer", for_small_groups=True),
        "hierarchical": Algorithm(hierarchical.all_reduce, by_node=True),
        "in_switch": Algorithm(in_switch.all_reduce, "in_switch", for_small_groups=True),
        "rail_tree": Algorithm(rails.all_reduce, by_node=True, least_per_node=1, pipelined=True),
    },
    "all_gather": {
        "ring": Algorithm(ring.all_gather, striped=True, most_ranks=MOST_IN_A_RING),
        "direct": Algorithm(direct.all_gather, for_small_groups=True),
        "halving_doubling": Algorithm(halving.all_gather, power_of_two=True),
        "one_shot": Algorithm(direct.one_shot_all_gather, "peer", for_small_groups=True),
        "hierarchical": Algorithm(hierarchical.all_gather, by_node=True),
    },
    "reduce_scatter": {
        "ring": Algorithm(ring.reduce_scatter, striped=True, most_ranks=MOST_IN_A_RING),
        "direct": Algorithm(direct.reduce_scatter, for_small_groups=True),
        "halving_doubling": Algorithm(halving.reduce_scatter, power_of_two=True),
        "one_shot": Algorithm(direct.one_shot_reduce_scatter, "peer", for_small_groups=True),
        "hierarchical": Algorithm(hierarchical.reduce_scatter, by_node=True),
    },
    "broadcast": {
        "ring": Algorithm(ring.broadcast, striped=True),
        "tree": Algorithm(tree.broadcast),
    },
    "reduce": {"ring": Algorithm(ring.reduce, striped=True), "tree": Algorithm(tree.reduce)},
    "all_to_all": {
        "pairwise": Algorithm(exchange.pairwise, "point_to_point", for_small_groups=True),
        "one_shot": Algorithm(exchange.one_shot, "point_to_point", for_small_groups=True),
        "scattered": Algorithm(exchange.scattered, "point_to_point"),
        "bruck": Algorithm(exchange.bruck, "point_to_point", for_small_groups=True),
    },
    "gather": {
        "direct": Algorithm(exchange.gather, "point_to_point"),
        "tree": Algorithm(tree.gather, "point_to_point"),
    },
    "scatter": {
        "direct": Algorithm(exchange.scatter, "point_to_point"),
        "tree": Algorithm(tree.scatter, "point_to_point"),
    },
    "send_recv": {"direct": Algorithm(direct.send_recv, "point_to_point")},
    "barrier": {"dissemination": Algorithm(barrier.dissemination)},
}

AUTO = "auto"


def known_ops() -> tuple[str, ...]:
    """Return the names of the collectives."""
    return tuple(_ALGORITHMS)


def known_algorithms(op: str) -> tuple[str, ...]:
    """Return the names of the op's algorithms; the first is what ``"auto"`` takes.

    Raises:
        UnknownNameError: There is no such collective.
    """
    return tuple(_algorithms(op))


def algorithm_class(op: str, algorithm: str) -> AlgorithmClass:
    """Return how an algorithm moves data, which decides the protocols that it can use."""
    return _algorithm(op, algorithm).moves


def for_small_groups(op: str, algorithm: str) -> bool:
    """Return whether only small groups choose it; by name it serves groups of any size."""
    return _algorithm(op, algorithm).for_small_groups


def serves_groups_of(op: str, algorithm: str, num_ranks: int) -> bool:
    """Return whether a group of that size chooses an algorithm; by name it serves any."""
    most = _algorithm(op, algorithm).most_ranks
    return most is None or num_ranks <= most


def refusal(op: str, algorithm: str, num_ranks: int, ranks_per_node: int = 0) -> str:
    """Return why an algorithm cannot serve a group, ``""`` if it can.

    Raises:
        UnknownNameError: No such op, or no such algorithm of it.
    """
    asked = _algorithm(op, algorithm)
    if num_ranks == 1:
        return ""
    if asked.power_of_two and num_ranks & (num_ranks - 1):
        return f"takes a power of two ranks, but the group has {num_ranks}"
    if asked.by_node:
        if ranks_per_node < 1:
            return "takes groups of whole nodes, and was told of none"
        if num_ranks % ranks_per_node or not asked.least_per_node <= ranks_per_node < num_ranks:
            return (
                f"takes groups of several whole nodes, but {num_ranks} ranks in nodes of "
                f"{ranks_per_node} are none"
            )
    return ""


@lru_cache(maxsize=256)
def build(
    op: str,
    algorithm: str,
    num_ranks: int,
    num_elements: int,
    itemsize: int,
    root: int = 0,
    counts: Counts = (),
    ranks_per_node: int = 0,
) -> Schedule:
    """Return the plan of a collective: which rank sends which chunk to whom, step by step.

    ``num_elements`` is the message's length (see :class:`Schedule`), ``root`` the rank that one
    tensor comes from or goes to. ``counts`` are for an all_to_all of uneven parts: elements from
    rank s to rank d at ``s * n + d``. ``algorithm`` may be ``"auto"``. One rank needs no steps.

    Raises:
        UnknownNameError: No such op, or no such algorithm of it; names the known ones.
        UsageError: A count or the root is out of range, or the algorithm cannot serve the group.
    """
    algorithms = _algorithms(op)
    if algorithm == AUTO:
        algorithm = next(iter(algorithms))
    chosen = _algorithm(op, algorithm)
    for what, value, least in (
        ("num_ranks", num_ranks, 2 if op == "send_recv" else 1),
        ("num_elements", num_elements, 0),
        ("itemsize", itemsize, 1),
        ("counts", min(counts, default=0), 0),
    ):
        if value < least:
            raise UsageError(f"{op}: {what} must be at least {least}, but got {value}")
    if op == "send_recv" and num_ranks != 2:
        raise UsageError(f"send_recv: num_ranks must be 2, but got {num_ranks}")
    if not 0 <= root < num_ranks:
        raise UsageError(f"{op}: root must be in 0..{num_ranks - 1}, but got {root}")
    if op == "barrier" and num_elements:
        raise UsageError(f"barrier: num_elements must be 0, but got {num_elements}")
    if counts and (op != "all_to_all" or len(counts) != num_ranks**2):
        raise UsageError(
            f"{op}: counts are for all_to_all, {num_ranks**2} of them for {num_ranks} ranks, "
            f"but got {len(counts)}"
        )
    why_not = refusal(op, algorithm, num_ranks, ranks_per_node)
    if why_not:
        raise UsageError(f"{op} by {algorithm} {why_not}; take {next(iter(algorithms))}")
    if not chosen.by_node:
        ranks_per_node = 0
    asked = Request(num_ranks, num_elements, itemsize, root, counts, ranks_per_node)
    # An algorithm that knows only nodes has no plan of one rank; that of any other does nothing.
    is_alone = num_ranks == 1 and chosen.by_node
    bounds, steps = (next(iter(algorithms.values())) if is_alone else chosen).build(asked)
    return Schedule(
        op,
        algorithm,
        num_ranks,
        num_elements,
        itemsize,
        bounds,
        steps,
        root,
        counts,
        ranks_per_node,
        chosen.fold,
        chosen.striped,
        chosen.pipelined,
    )


def _algorithm(op: str, algorithm: str) -> Algorithm:
    algorithms = _algorithms(op)
    if algorithm not in algorithms:
        raise UnknownNameError(
            f"unknown algorithm {algorithm!r} of {op}: {nearest(algorithm, algorithms)}"
        )
    return algorithms[algorithm]


def _algorithms(op: str) -> dict[str, Algorithm]:
    try:
        return _ALGORITHMS[op]
    except KeyError:
        raise UnknownNameError(f"unknown collective {op!r}: {nearest(op, _ALGORITHMS)}") from None
