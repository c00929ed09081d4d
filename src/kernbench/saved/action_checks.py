"""Whether what ranks did can be done at all: what the numbers of actions are of is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.saved.action import (
    ACTORS,
    LABELS,
    LATE,
    MAKES_HANDLES,
    MEETINGS,
    ON_HANDLES,
    OPERANDS,
    OWED,
    PLACE,
    SPAWNS,
    SPENDS,
    STREAMS,
    TIME_PS,
    TUPLES,
    WORKS,
    WORKS_OF,
    Action,
)
from kernbench.saved.layout import ACTIONS, DESCRIBED, MEMORY_EVENTS, MOST
from kernbench.saved.opened import RunFile

Numbers = npt.NDArray[Any]
Grid = tuple[int, ...]
_PROGRAM_BYTES = 64
"""What a program of a kernel takes while its grid is planned, about."""


def counts_of(described: Mapping[str, Any]) -> dict[str, int]:
    """Return how many there are of what numbers of actions are of."""
    lists = (WORKS, TUPLES, STREAMS, SPENDS, OWED, LABELS, MEETINGS)
    counts = {name: len(described.get(name, ())) for name in lists}
    # 0 is nothing.
    counts[OWED] += 1
    counts[LATE] = counts[SPENDS] + 1
    counts[TIME_PS] = MOST
    return counts


def check_actions(
    file: RunFile,
    described: Mapping[str, Any],
    ranks: Sequence[int],
    owners: Numbers,
    values: Numbers,
    events: Numbers | None,
    counts: Mapping[str, int],
) -> None:
    """Hold actions, one per row of ``values``, against what is described, and against each other.

    Raises:
        UsageError: Something that they name is not there; names the row.
    """
    _check_described(file, described, ranks, counts)
    if (owners[1:] < owners[:-1]).any():
        raise file.damaged(ACTIONS.part, "actors are not in order")
    kinds = values[:, 0]
    counts = {**counts, SPAWNS: int((kinds == Action.SPAWN).sum())}
    known = np.isin(kinds, list(OPERANDS))
    if not known.all():
        row = int(np.argmin(known))
        raise file.damaged(ACTIONS.part, f"row {row:,}: there is no action {kinds[row]}")
    for action, operands in OPERANDS.items():
        rows = np.flatnonzero(kinds == action)
        for place, of in enumerate(operands, 1):
            if of in counts:
                _check_below(file, rows, values[rows, place], of, counts[of])
    _check_works(file, described, values)
    first = np.searchsorted(owners, np.arange(len(ranks) + 1))
    if not described["refused"]:
        _check_handles(file, described, values, first)
    _check_spawns(file, values, owners, len(ranks))
    if events is not None:
        places = np.diff(first)[events[:, 1]]
        _check_below(
            file, np.arange(len(events)), events[:, 2], PLACE, places + 1, MEMORY_EVENTS.part
        )


def _check_below(
    file: RunFile, rows: Numbers, values: Numbers, of: str, most: Any, part: str = ACTIONS.part
) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= most))
    if len(wrong):
        limit = int(np.broadcast_to(most, values.shape)[wrong[0]])
        said = f"row {int(rows[wrong[0]]):,}: number {values[wrong[0]]} of {limit:,} {of}"
        raise file.damaged(part, said)


def _check_described(
    file: RunFile, described: Mapping[str, Any], ranks: Sequence[int], counts: Mapping[str, int]
) -> None:
    """Hold what is described against the run, and its numbers against what else is described."""

    def check(values: Any, of: str, what: str) -> None:
        other = next((value for value in values if value >= counts[of]), None)
        if other is not None:
            raise file.damaged(DESCRIBED, f"{what} {other} of {counts[of]:,} {of}")

    texts = len(described["texts"])
    check(ranks, "ranks", "an actor is rank")
    check((item for item, _ in described["streams"]), "SIPs", "a stream is of SIP")
    check((item["sip"] for item in described["works"] if "sip" in item), "SIPs", "a work is on SIP")
    for item in described["meetings"]:
        check(item["ranks"], "ranks", "a collective is of rank")
        if len({*item["ranks"]}) < len(item["ranks"]):
            raise file.damaged(DESCRIBED, "a rank is in a collective twice")
    check((owed for *_, owed in described.get(SPENDS, ())), OWED, "a host owes")
    for number, work in enumerate(described[WORKS]):
        where = f"works.{number}"
        if work.get("text", 0) >= max(texts, 1) or (not texts and "text" in work):
            raise file.damaged(DESCRIBED, f"{where}: text {work['text']} of {texts:,} texts")
        if work["kind"] == "part" and work["stream"] >= counts[STREAMS]:
            raise file.damaged(
                DESCRIBED, f"{where}: stream {work['stream']} of {counts[STREAMS]:,}"
            )
    folding = described.get("folding")
    if folding is not None and (
        folding["num_ranks"] != counts["ranks"] or folding["base"] >= counts["ranks"]
    ):
        raise file.damaged(DESCRIBED, f"folding: not of {counts['ranks']:,} ranks")


def take_programs(file: RunFile, described: Mapping[str, Any], launched: Collection[Grid]) -> None:
    """Take the memory of the programs of the largest grid, of those that the run has not launched.

    Raises:
        UsageError: It is too large for what the file holds.
    """
    grids = {tuple(item["grid"]) for item in described[WORKS] if "grid" in item}
    most = max(map(prod, grids.difference(launched)), default=0)
    file.take(DESCRIBED, most * _PROGRAM_BYTES)


def _check_works(file: RunFile, described: Mapping[str, Any], values: Numbers) -> None:
    """Check that actions are of works of their kinds."""
    works, tuples = described[WORKS], described[TUPLES]
    kinds = np.array([work["kind"] for work in works], object)
    for action, known in WORKS_OF.items():
        rows = np.flatnonzero(values[:, 0] == action)
        if action == Action.GRAPH_OPERATIONS:
            numbers = {item for row in {*values[rows, 1].tolist()} for item in tuples[row]}
            other = next((number for number in numbers if not 0 <= number < len(works)), None)
            if other is not None:
                raise file.damaged(DESCRIBED, f"tuples: work {other} of {len(works):,} works")
            used = np.array(sorted(numbers), np.int64)
        else:
            used = np.unique(values[rows, 1 + OPERANDS[action].index(WORKS)])
        wrong = [item for item in used.tolist() if kinds[item] not in known]
        if wrong:
            said = f"works.{wrong[0]}: it is of kind {kinds[wrong[0]]}, for {action.name.lower()}"
            raise file.damaged(DESCRIBED, said)
    rows = values[values[:, 0] == Action.ARRIVE]
    for meeting, work, _ in {tuple(item) for item in rows[:, 1:].tolist()}:
        num_ranks, position = len(described[MEETINGS][meeting]["ranks"]), works[work]["position"]
        if position >= num_ranks:
            said = f"works.{work}: position {position} of {num_ranks:,} ranks of a collective"
            raise file.damaged(DESCRIBED, said)


def _check_handles(
    file: RunFile, described: Mapping[str, Any], values: Numbers, first: Numbers
) -> None:
    """Check that what actions wait for is made by actions."""
    rows = np.flatnonzero(np.isin(values[:, 0], list(ON_HANDLES)))
    makers, places = values[rows, 1], values[rows, 2]
    tails = makers == Action.TAIL
    _check_below(file, rows[tails], places[tails], STREAMS, len(described[STREAMS]))
    rows, makers, places = rows[~tails], makers[~tails], places[~tails]
    _check_below(file, rows, makers, ACTORS, len(first) - 1)
    _check_below(file, rows, places, "actions", np.diff(first)[makers])
    result = values[first[makers] + places]
    wrong = np.flatnonzero(~np.isin(result[:, 0], list(MAKES_HANDLES)))
    if len(wrong):
        raise file.damaged(ACTIONS.part, f"row {rows[wrong[0]]:,}: nobody can wait for that")
    parts = np.flatnonzero(values[rows, 0] == Action.WAIT_DATA)
    has_host = [item["kind"] == "part" and item["has_host"] for item in described[WORKS]]
    of_parts = result[parts]
    for row, (action, _, work, _) in zip(rows[parts].tolist(), of_parts.tolist(), strict=True):
        if action != Action.ARRIVE or not has_host[work]:
            raise file.damaged(ACTIONS.part, f"row {row:,}: it waits for data of no collective")


def _check_spawns(file: RunFile, values: Numbers, owners: Numbers, num_actors: int) -> None:
    """Check that each actor is started once, by one before it."""
    started: set[int] = set()
    for row in np.flatnonzero(values[:, 0] == Action.SPAWN).tolist():
        first, count = int(values[row, 1]), int(values[row, 2])
        if not (owners[row] < first and 0 < count <= num_actors - first):
            said = (
                f"row {row:,}: actor {owners[row]} starts {count:,} from {first}, of {num_actors:,}"
            )
            raise file.damaged(ACTIONS.part, said)
        again = started.intersection(range(first, first + count))
        if again:
            raise file.damaged(ACTIONS.part, f"row {row:,}: actor {min(again)} is started twice")
        started.update(range(first, first + count))
