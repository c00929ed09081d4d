"""What all ranks did, from what those did that ran for them.

A folded run holds up all ranks of a collective until its last one, since only one of them runs. To
know when each goes on, all have to be there: but not their programs, which do the same. So what the
ranks that ran did is done again for every rank, on its own SIP and in its own groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.errors import UsageError
from kernbench.runtime_api.base.folding.axes import shown
from kernbench.runtime_api.base.folding.classes import Folding
from kernbench.saved import ON_HANDLES, OPERANDS, STREAMS, Action, Actions, Actor

Numbers = npt.NDArray[np.int64]
Ranks = tuple[int, ...]

_STREAM_AT = {
    action: 1 + operands.index(STREAMS)
    for action, operands in OPERANDS.items()
    if STREAMS in operands
}
"""Which of the numbers of an action is a stream."""
_WITH_SIP = (Action.TRANSFER, Action.COPY, Action.GRAPH_COPY)
"""The actions whose first number is a piece of work on a SIP."""
_WIDTH = 4


def unfolded(actions: Actions, folding: Folding) -> Actions:
    """Return what all ranks of a folded run did. Its meetings have the numbers that they had.

    Raises:
        UsageError: That is not known of some group, or ranks wait for each other in another way
            than by collectives.
    """
    return _Unfolding(actions, folding).all()


class _Unfolding:
    """What is made for the ranks that did not run: their streams, works and meetings."""

    def __init__(self, actions: Actions, folding: Folding) -> None:
        described = actions.described
        self._actions, self._folding = actions, folding
        self._works: list[dict[str, Any]] = list(described["works"])
        self._streams: list[tuple[int, int]] = list(map(tuple, described["streams"]))
        self._meetings: list[dict[str, Any]] = list(described["meetings"])
        self._num_works, self._num_streams = len(self._works), len(self._streams)
        self._stream_of = {stream: number for number, stream in enumerate(self._streams)}
        self._moved_works: dict[tuple[int, int], int] = {}
        self._parts: dict[tuple[int, Ranks, int], int] = {}
        self._meeting_of: dict[tuple[int, Ranks], int] = {}
        self._groups: dict[tuple[Ranks, bool, int, int], Ranks] = {}

    def all(self) -> Actions:
        """Return the actions of main and of all ranks."""
        main = np.array(self._actions.actors[0].values, np.int64).reshape(-1, _WIDTH)
        actors: list[Actor] = []
        # Main starts ranks, and waits for them.
        for row in main[main[:, 0] == Action.SPAWN]:
            first, count = int(row[1]), int(row[2])
            row[1], row[2] = 1 + len(actors), self._folding.num_ranks
            running = dict(zip(self._folding.running, range(first, first + count), strict=True))
            actors += self._of_all(running, 1 + len(actors))
            main[(main[:, 0] == Action.SPAWN) & (main[:, 1] == first)] = row
        described = {
            **self._actions.described,
            "works": self._works,
            "streams": self._streams,
            "meetings": self._meetings,
        }
        described.pop("folding", None)
        return replace(
            self._actions,
            described=described,
            actors=[Actor(0, 0, main.ravel().tolist()), *actors],
            memory_events=None,
        )

    def _of_all(self, running: dict[int, int], first: int) -> list[Actor]:
        """Return the actors of all ranks, of which ``running`` ran as these actors."""
        values = {
            rank: np.array(self._actions.actors[actor].values, np.int64).reshape(-1, _WIDTH)
            for rank, actor in running.items()
        }
        actors = []
        for rank in range(self._folding.num_ranks):
            runs = self._folding.representative(rank)
            moved = self._moved(values[runs].copy(), runs, rank, (running[runs], first + rank))
            actors.append(Actor(first + rank, rank, moved.ravel().tolist()))
        return actors

    def _moved(self, rows: Numbers, runs: int, rank: int, actor: tuple[int, int]) -> Numbers:
        """Change the actions of the rank that ran into those of another one; return them."""
        kinds, by = rows[:, 0], rank - runs
        streams = np.array([self._moved_stream(index, by) for index in range(self._num_streams)])
        for kind, place in _STREAM_AT.items():
            which = np.flatnonzero(kinds == kind)
            taken = rows[which, place]
            # Below 0: none.
            rows[which, place] = np.where(taken < 0, taken, streams[taken])
        which = np.flatnonzero(np.isin(kinds, list(ON_HANDLES)))
        self._move_handles(rows, which, actor, streams)
        for at in np.flatnonzero(np.isin(kinds, _WITH_SIP)):
            rows[at, 1] = self._moved_work(int(rows[at, 1]), by)
        rows[kinds == Action.BIND, 1] += by
        for at in np.flatnonzero(kinds == Action.ARRIVE):
            meeting, work = int(rows[at, 1]), int(rows[at, 2])
            rows[at, 1], rows[at, 2] = self._moved_call(meeting, work, runs, rank)
        return rows

    def _move_handles(
        self, rows: Numbers, which: Numbers, actor: tuple[int, int], streams: Numbers
    ) -> None:
        makers = rows[which, 1]
        tails = which[makers == Action.TAIL]
        rows[tails, 2] = streams[rows[tails, 2]]
        own = makers == actor[0]
        if not (own | (makers == Action.TAIL) | (makers == 0)).all():
            raise UsageError("a rank waits for what another one does in Python")
        rows[which[own], 1] = actor[1]

    def _moved_stream(self, stream: int, by: int) -> int:
        sip, index = self._streams[stream]
        moved = sip + by, index
        moved_stream = self._stream_of.get(moved)
        if moved_stream is None:
            moved_stream = self._stream_of[moved] = len(self._streams)
            self._streams.append(moved)
        return moved_stream

    def _moved_work(self, work: int, by: int) -> int:
        values = self._works[work]
        if not by or "sip" not in values:
            return work
        moved_work = self._moved_works.get((work, by))
        if moved_work is None:
            moved_work = self._moved_works[work, by] = len(self._works)
            self._works.append({**values, "sip": values["sip"] + by})
        return moved_work

    def _moved_call(self, meeting: int, work: int, runs: int, rank: int) -> tuple[int, int]:
        """Return the meeting and the part of a rank, from those of the one that ran."""
        values = self._meetings[meeting]
        is_pair = bool(values["call"])
        ranks = self._group(tuple(values["ranks"]), is_pair, runs, rank)
        key = meeting, ranks
        number = self._meeting_of.get(key)
        if number is None:
            if ranks == tuple(values["ranks"]):
                number = meeting
            else:
                number = len(self._meetings)
                self._meetings.append({**values, "ranks": ranks})
            self._meeting_of[key] = number
        return number, self._moved_part(work, ranks, is_pair, runs, rank)

    def _group(self, ranks: Ranks, is_pair: bool, runs: int, rank: int) -> Ranks:
        key = ranks, is_pair, runs, rank
        group = self._groups.get(key)
        if group is None:
            # Of a pair both run.
            group = (
                tuple([number + rank - runs for number in ranks])
                if is_pair
                else self._folding.group_of(ranks, rank)
            )
            if group is None:
                raise UsageError(f"ranks {shown(ranks)} are no row of a mesh of all ranks")
            self._groups[key] = group
        return group

    def _moved_part(self, work: int, ranks: Ranks, is_pair: bool, runs: int, rank: int) -> int:
        if rank == runs:
            return work
        key = work, ranks, rank
        moved_part = self._parts.get(key)
        if moved_part is None:
            values = self._works[work]
            stream = values["stream"]
            moved_part = self._parts[key] = len(self._works)
            self._works.append(
                {
                    **values,
                    "sip": values["sip"] + rank - runs,
                    "position": values["position"] if is_pair else ranks.index(rank),
                    "stream": stream if stream < 0 else self._moved_stream(stream, rank - runs),
                }
            )
        return moved_part
