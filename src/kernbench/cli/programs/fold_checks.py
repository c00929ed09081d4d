"""Which ranks are run beside those of a folded run, and what comparing them shows (ADR-0231)."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from kernbench.cli.options import COVERING
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.retiming import RankWork
    from kernbench.runtime_api import Folding, RankAxis

MOST_IN_FULL = 8
"""Up to how many ranks a check runs all of them."""
MOST_COVERING = 64
"""How many other ranks a check runs at most, if it is not told how many."""


PLACES, GROUPS = "places in a node", "groups of ranks"
NAMED = "ranks that the program names"
Covered = tuple[str, tuple["RankAxis", ...], int]
"""A place in a node, a group (in which rows of which axes, and its first rank), or a rank."""
_COMPARISONS = frozenset(("COMPARE_OP", "CONTAINS_OP"))


class CoveringRanks(NamedTuple):
    """The ranks that a check runs."""

    bases: list[int]
    """Each runs in the place of rank 0, and with it those that it sends to."""
    covers: str
    """What they cover, in words."""


class FoldVerdict(NamedTuple):
    """What a check has shown."""

    lines: list[str]
    is_same_work: bool
    is_same_time: bool


def ranks_named_in(program: CodeType) -> frozenset[int]:
    """Return the numbers that code compares something with: a rank may differ by its number."""
    numbers: set[int] = set()
    codes = [program]
    for code in codes:
        codes += [co_const for co_const in code.co_consts if isinstance(co_const, CodeType)]
        before: Any = None
        for step in dis.get_instructions(code):
            if step.opname in _COMPARISONS:
                parts = before if isinstance(before, (tuple, frozenset)) else (before,)
                numbers.update(part for part in parts if type(part) is int)
            before = step.argval if step.opname == "LOAD_CONST" else None
    return frozenset(numbers)


def chosen(
    folding: Folding,
    groups: Sequence[tuple[int, ...]],
    per_node: int,
    num_checks: int,
    named: Iterable[int] = (),
) -> CoveringRanks:
    """Return which other ranks to run, so many or as many as cover what is taken to be equal.

    Those that cover most come first: places in a node, groups of which no rank has run yet, and
    the last rank and those that are ``named``.
    """
    covers = _covers(folding, groups, per_node, named)
    wanted = set().union(*covers.values())
    left = wanted - covers.pop(0)
    is_covering = num_checks == COVERING
    if is_covering and folding.num_ranks <= MOST_IN_FULL:
        return CoveringRanks(sorted(covers), "")
    most = min(MOST_COVERING if is_covering else num_checks, len(covers))
    numbers: list[int] = []
    while len(numbers) < most and (left or not is_covering):
        # Of equal ones not always the lowest: neighbours are more alike than others.
        rest = sorted(covers.keys() - numbers)
        start = len(numbers) * len(rest) // most
        best = max(rest[start:] + rest[:start], key=lambda base: len(covers[base] & left))
        numbers.append(best)
        left -= covers[best]
    return CoveringRanks(sorted(numbers), _in_words(wanted, left))


def _covers(
    folding: Folding, groups: Sequence[tuple[int, ...]], per_node: int, named: Iterable[int]
) -> dict[int, set[Covered]]:
    """Return by rank what it covers, and those that have to run with it: only the first of them."""
    from kernbench.runtime_api import axes_of

    rows = {axes_of(group, folding.num_ranks) for group in groups} - {None}
    covers: dict[int, set[Covered]] = {}
    singled = {folding.num_ranks - 1, *named}
    for rank in range(folding.num_ranks):
        base = _first_of(rank, folding.axes)
        covered = covers.setdefault(base, {(PLACES, (), rank % per_node)})
        covered.add((PLACES, (), rank % per_node))
        covered.update((GROUPS, axes, _first_of(rank, axes)) for axes in rows if axes)
        if rank in singled:
            covered.add((NAMED, (), rank))
    return covers


def _first_of(rank: int, axes: Iterable[RankAxis]) -> int:
    """Return the first rank of those that differ from a rank by where they are on axes alone."""
    return rank - sum(axis.position(rank) * axis.stride for axis in axes)


def _in_words(wanted: set[Covered], left: set[Covered]) -> str:
    said = []
    for kind in (PLACES, GROUPS, NAMED):
        total = sum(triple[0] == kind for triple in wanted)
        missed = sum(triple[0] == kind for triple in left)
        if missed or kind != NAMED:
            said.append(f"{total - missed} of {total} {kind}" if missed else f"all {total} {kind}")
    return " and ".join(said)


def axes_of_more(
    axes: Sequence[RankAxis], groups: Iterable[tuple[int, ...]], num_ranks: int
) -> tuple[RankAxis, ...]:
    """Return axes along which a few more ranks can run, so that each group has several of them.

    Two or three on each axis, four on a single one: then some rank comes last everywhere.
    """
    from kernbench.runtime_api import RankAxis, axes_of

    known = (axes_of(group, num_ranks) or () for group in groups)
    most = {axis.stride: axis.size for item in known for axis in item if axis not in axes}
    rank_axis: list[RankAxis] = []
    for stride, size in sorted(most.items()):
        least = next(factor for factor in range(2, size + 1) if size % factor == 0)
        if len(most) == 1 and size % 4 == 0:
            least = 4
        if all(stride % (axis.stride * axis.size) == 0 for axis in rank_axis):
            rank_axis.append(RankAxis(stride, least))
    return tuple(rank_axis)


def verdict(
    folding: Folding, known: Mapping[int, RankWork], others: Mapping[int, RankWork]
) -> FoldVerdict:
    """Return how what other ranks did differs from what those did that ran for them."""
    from kernbench.retiming import first_difference

    alike: list[int] = []
    differing: dict[tuple[int, str], list[int]] = {}
    is_same_work = is_same_time = True
    for rank, work in sorted(others.items()):
        runs = folding.representative(rank)
        difference = first_difference(known[runs], work, rank=runs)
        if difference is None:
            alike.append(rank)
            continue
        is_same_time = False
        is_same_work = is_same_work and not difference.is_of_work
        does = "does not do what" if difference.is_of_work else "does, but in another time, what"
        text = f"{does} rank {runs} does, which ran for it: {difference.text}"
        differing.setdefault((runs, text), []).append(rank)
    lines = [
        f"fold check: {ranks_in_words(ranks)} {text}" for (_, text), ranks in differing.items()
    ]
    if not is_same_work:
        lines.append("fold check: run it without --fold; what is reported is not of all ranks")
    if alike:
        lines.append(
            f"fold check: {ranks_in_words(alike)} did what ran for it did: the same operations, "
            "copies and collectives in the same order, with as much work of hosts and the same "
            "peak of memory"
        )
    return FoldVerdict(lines, is_same_work, is_same_time)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ranks as they are listed in a sentence about each of them.

    >>> ranks_in_words([3]), ranks_in_words([1, 2, 3, 5])
    ('rank 3', 'each of ranks 1 to 3 and 5')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    parts: list[str] = []
    for _, run in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        row = [rank for _, rank in run]
        parts += [f"{row[0]} to {row[-1]}"] if len(row) > 2 else map(str, row)
    *most, last = parts
    return f"each of ranks {', '.join(most)} and {last}" if most else f"each of ranks {last}"


def failed(base: int, why: str) -> UsageError:
    """Return what to say if a program fails with another rank in the place of the first."""
    return UsageError(
        f"--fold-check: with rank {base} in the place of rank 0 the program failed ({why}); run it "
        "without --fold to see what that rank does"
    )
