"""Which collectives there are, by op and algorithm, and the one way to plan one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from kernbench.collectives import barrier, direct, ring, tree
from kernbench.collectives.plan import Plan, Request
from kernbench.collectives.schedule import Schedule
from kernbench.errors import UnknownNameError, UsageError, nearest

_Builder = Callable[[Request], Plan]

# The first algorithm of an op is the one that "auto" takes.
_BUILDERS: dict[str, dict[str, _Builder]] = {
    "all_reduce": {"ring": ring.all_reduce, "direct": direct.all_reduce, "tree": tree.all_reduce},
    "all_gather": {"ring": ring.all_gather, "direct": direct.all_gather},
    "reduce_scatter": {"ring": ring.reduce_scatter, "direct": direct.reduce_scatter},
    "broadcast": {"ring": ring.broadcast, "tree": tree.broadcast},
    "send_recv": {"direct": direct.send_recv},
    "barrier": {"dissemination": barrier.dissemination},
}

AUTO = "auto"


def known_ops() -> tuple[str, ...]:
    """Return the names of the collectives."""
    return tuple(_BUILDERS)


def known_algorithms(op: str) -> tuple[str, ...]:
    """Return the names of the op's algorithms; the first is what ``"auto"`` takes.

    Raises:
        UnknownNameError: There is no such collective.
    """
    return tuple(_algorithms(op))


@lru_cache(maxsize=256)
def build(
    op: str, algorithm: str, num_ranks: int, num_elements: int, itemsize: int, root: int = 0
) -> Schedule:
    """Return the plan of a collective: which rank sends which chunk to whom, step by step.

    ``num_elements`` is the length of the work buffer (see :class:`Schedule`), ``root`` the sender
    of a broadcast or a send_recv. ``algorithm`` may be ``"auto"``. One rank needs no steps.

    Raises:
        UnknownNameError: No such op, or no such algorithm of it; names the known ones.
        UsageError: A count or the root is out of range.
    """
    algorithms = _algorithms(op)
    if algorithm == AUTO:
        algorithm = next(iter(algorithms))
    if algorithm not in algorithms:
        raise UnknownNameError(
            f"unknown algorithm {algorithm!r} of {op}: {nearest(algorithm, algorithms)}"
        )
    for what, value, least in (
        ("num_ranks", num_ranks, 2 if op == "send_recv" else 1),
        ("num_elements", num_elements, 0),
        ("itemsize", itemsize, 1),
    ):
        if value < least:
            raise UsageError(f"{op}: {what} must be at least {least}, but got {value}")
    if op == "send_recv" and num_ranks != 2:
        raise UsageError(f"send_recv: num_ranks must be 2, but got {num_ranks}")
    if not 0 <= root < num_ranks:
        raise UsageError(f"{op}: root must be in 0..{num_ranks - 1}, but got {root}")
    if op == "barrier" and num_elements:
        raise UsageError(f"barrier: num_elements must be 0, but got {num_elements}")
    bounds, steps = algorithms[algorithm](Request(num_ranks, num_elements, itemsize, root))
    return Schedule(op, algorithm, num_ranks, num_elements, itemsize, bounds, steps, root)


def _algorithms(op: str) -> dict[str, _Builder]:
    try:
        return _BUILDERS[op]
    except KeyError:
        raise UnknownNameError(f"unknown collective {op!r}: {nearest(op, _BUILDERS)}") from None
