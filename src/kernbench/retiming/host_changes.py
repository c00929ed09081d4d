"""What ranks would do with less time of their hosts: changed actions of a kept run (ADR-0156).

An action that is left out becomes one that does nothing, as others name actions by their places.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from kernbench.analysis import source_line
from kernbench.errors import UsageError
from kernbench.op_log import Site, find_steps
from kernbench.runtime_api import Action

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernbench.saved import Actions, Actor, SavedRun

_WIDTH = 4
_NOTHING = (Action.PAY.value, 0, 0, 0)
"""A host that owes nothing pays."""
_LEAST_NODES = 2
_IN_GRAPH = frozenset(
    (
        Action.PAY, Action.OPERATION, Action.ARRIVE, Action.WAIT_DATA, Action.HOST_MARK,
        Action.HOST_STREAM_WAITS, Action.BIND,
    )
)  # fmt: skip
"""What a CUDA graph can hold, with the launch (``SPEND``) of a collective."""
_AROUND_ACTIONS = frozenset(("wait", "interruption", "restart", "storage"))
"""Spans of a host that no action of its own stands for."""
_OF_PROGRAM = "Python"
"""The label of spans of the program's Python; others are what it waits for, as a compiler."""

Row = tuple[int, ...]
"""An action with its three numbers."""


class ChangedActions(NamedTuple):
    """What ranks do otherwise."""

    actions: Actions
    detail: str
    """What was changed, with numbers."""


def in_graphs(saved: SavedRun) -> ChangedActions:
    """Return what ranks do if all launches between two waits are one CUDA graph.

    A graph ends where its host waits for the device, reads, copies, asks, or gets memory from the
    driver, and where a step does. Its launch takes the time that the machine says for one of so
    many kernels; nothing else that the program did meanwhile on its host takes any.
    """
    edited = _Edited(saved)
    num_graphs = num_nodes = 0
    steps = find_steps(saved.log)
    edges = frozenset() if steps is None else steps.edges
    for number, rows in edited.rows():
        for graph in _graphs(rows, edited.inside_graphs(rows, edges)):
            num_graphs += 1
            num_nodes += graph.num_nodes
            _put_graph(graph, rows, edited)
        edited.put(number, rows)
    return edited.changed(f"{_counted(num_graphs, 'graph')} of {_counted(num_nodes, 'launch')}")


def compiled(saved: SavedRun) -> ChangedActions:
    """Return what ranks do if what they launch in a row is launched by code of ``torch.compile``.

    Of such a row the host enters one graph, and then takes the time of a launch of Inductor's for
    each operation. What runs on the device stays as it is: no kernels are fused.
    """
    edited = _Edited(saved)
    num_graphs = num_operations = 0
    for number, rows in edited.rows():
        for places in _in_a_row(rows):
            inside = [place for place in places if rows[place][0] == Action.OPERATION]
            if len(inside) < _LEAST_NODES:
                continue
            num_graphs += 1
            num_operations += len(inside)
            for place in places:
                action, work, stream, spend = rows[place]
                if action == Action.PAY:
                    rows[place] = _NOTHING
                    continue
                entered = [("compiled_call_ps", 1)] if place == inside[0] else []
                owed = edited.owe(*entered, ("compiled_launch_ps", 1))
                launched = edited.spends.number((*edited.spends[spend][:2], 0, owed))
                rows[place] = (action, work, stream, launched)
        edited.put(number, rows)
    of = f"{_counted(num_operations, 'launch')}, no kernels fused"
    return edited.changed(f"{_counted(num_graphs, 'graph')} of {of}")


def _in_a_row(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Yield the places of operations, and of what else a host pays, with nothing else between."""
    kinds = (Action.OPERATION, Action.PAY)
    for is_wanted, places in groupby(range(len(rows)), lambda place: rows[place][0] in kinds):
        if is_wanted:
            yield list(places)


def with_half_the_operations(saved: SavedRun) -> ChangedActions:
    """Return what ranks do if every other operation takes no time of its host.

    As if it were part of the one before; on the device all take as long as they did.
    """
    edited = _Edited(saved)
    count = 0
    for number, rows in edited.rows():
        for place, (action, work, stream, spend) in enumerate(rows):
            if action == Action.OPERATION:
                count += 1
                if count % 2 == 0:
                    free = edited.spends.number((*edited.spends[spend][:2], 0, 0))
                    rows[place] = (action, work, stream, free)
        edited.put(number, rows)
    return edited.changed(f"{count // 2:,} of {_counted(count, 'operation')} take hosts no time")


def without_waits(saved: SavedRun) -> ChangedActions:
    """Return what ranks do if no host reads a value, or waits for its device or for an event.

    They still wait for other ranks.
    """
    edited = _Edited(saved)
    parts = {
        (number, place)
        for number, rows in edited.rows()
        for place, row in enumerate(rows)
        if row[0] == Action.ARRIVE
    }
    num_waits = 0
    for number, rows in edited.rows():
        for place, (action, a, b, _) in enumerate(rows):
            if action == Action.HOST_READ or (action == Action.HOST_WAIT and (a, b) not in parts):
                num_waits += action == Action.HOST_WAIT
                rows[place] = _NOTHING
        edited.put(number, rows)
    return edited.changed(_counted(num_waits, "wait"))


def without_line(saved: SavedRun, site: Site) -> ChangedActions:
    """Return what ranks do if a line of the program takes no time of hosts.

    Raises:
        UsageError: It is not known which of their actions are of which line.
    """
    edited = _Edited(saved)
    lines = lines_of_actions(saved)
    sites = saved.log.program_lines.sites  # type: ignore[union-attr]
    wanted = {number for number, at in enumerate(sites) if at == site}
    spends = edited.spends
    for number, rows in edited.rows():
        for place, (action, a, b, c) in enumerate(rows):
            if lines[number][place] not in wanted:
                continue
            if action == Action.OPERATION:
                rows[place] = (action, a, b, spends.number((*spends[c][:2], 0, 0)))
            elif action == Action.SPEND:
                rows[place] = (action, spends.number((*spends[a][:2], 0, 0)), b, c)
            elif action == Action.HOST_WAIT:
                rows[place] = (action, a, b, 0)
            else:
                rows[place] = _NOTHING
        edited.put(number, rows)
    return edited.changed(source_line(saved.sources.get(site[0], ""), site[1]).strip())


def _counted(count: int, what: str) -> str:
    ending = "" if count == 1 else "es" if what.endswith("ch") else "s"
    return f"{count:,} {what}{ending}"


class _Numbered:
    """Values with numbers, as the actions have them; equal ones have one number."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(map(tuple, values))
        self._numbers = {item: number for number, item in enumerate(self.values)}

    def __getitem__(self, number: int) -> Any:
        return self.values[number]

    def number(self, value: Any) -> int:
        result = self._numbers.get(value)
        if result is None:
            result = self._numbers[value] = len(self.values)
            self.values.append(value)
        return result


class _Edited:
    """The actions of a run, about to be changed."""

    def __init__(self, saved: SavedRun) -> None:
        actions = saved.actions
        if actions is None:
            raise UsageError(f"{saved.path}: this run was saved without what its ranks did")
        self._actions, self.actors = actions, list(actions.actors)
        described = actions.described
        self.spends = _Numbered(described.get("spends", ()))
        self.tuples = _Numbered(described["tuples"])
        self.owed = list(described.get("owed", ()))

    def owe(self, *counts: tuple[str, int]) -> int:
        """Return the number of what a host owes: names of its times, and how often."""
        self.owed.append(counts)
        # 0 is nothing.
        return len(self.owed)

    def rows(self) -> Iterator[tuple[int, list[Row]]]:
        """Yield what each actor does, for changes."""
        for number, actor in enumerate(self.actors):
            yield number, _rows(actor)

    def inside_graphs(self, rows: Sequence[Row], edges: frozenset[str]) -> frozenset[int]:
        """Return the places at which ranges begin and end that no step begins or ends with."""
        names = self._actions.described.get("labels", ())
        ends = [
            (place, number)
            for place, (action, label, number, _) in enumerate(rows)
            if action == Action.RANGE_END and names[label] not in edges
        ]
        numbers = {number for _, number in ends}
        return frozenset(place for place, _ in ends) | {
            place
            for place, (action, number, _, _) in enumerate(rows)
            if action == Action.RANGE_BEGIN and number in numbers
        }

    def put(self, number: int, rows: Sequence[Row]) -> None:
        values = [number for row in rows for number in row]
        self.actors[number] = replace(self.actors[number], values=values)

    def changed(self, detail: str) -> ChangedActions:
        values = {
            **self._actions.described,
            "spends": self.spends.values,
            "tuples": self.tuples.values,
            "owed": self.owed,
        }
        return ChangedActions(replace(self._actions, described=values, actors=self.actors), detail)


@dataclass(frozen=True)
class _GraphedActions:
    """Actions in a row that become a graph."""

    first: int
    """The place of the first operation; the second one follows on its stream."""
    places: Sequence[int]
    """The places of all others."""
    num_nodes: int


def _graphs(rows: Sequence[Row], free: frozenset[int]) -> Iterator[_GraphedActions]:
    """Yield what can be a graph of what a host does."""
    numbers: list[int] = []
    for place in range(len(rows)):
        if place in free or _can_be_in_graph(rows, place):
            numbers.append(place)
            continue
        yield from _graph(rows, numbers)
        numbers = []
    yield from _graph(rows, numbers)


def _can_be_in_graph(rows: Sequence[Row], place: int) -> bool:
    action = rows[place][0]
    if action == Action.SPEND:
        return place + 1 < len(rows) and rows[place + 1][0] == Action.ARRIVE
    return action in _IN_GRAPH


def _graph(rows: Sequence[Row], places: Sequence[int]) -> Iterator[_GraphedActions]:
    """Yield the graph of consecutive actions, if there is one.

    It begins with two operations in a row: there is the place for its launch, and for what it does
    first.
    """
    before: int | None = None
    for at, place in enumerate(places):
        action, _, stream, _ = rows[place]
        if action == Action.OPERATION:
            if before is not None and rows[before][2] == stream:
                inside = places[at:]
                nodes = sum(rows[at][0] in (Action.OPERATION, Action.ARRIVE) for at in inside)
                yield _GraphedActions(before, inside, 1 + nodes)
                return
            before = place
        elif action not in (Action.PAY, Action.RANGE_BEGIN, Action.RANGE_END):
            before = None


def _put_graph(graph: _GraphedActions, rows: list[Row], edited: _Edited) -> None:
    """Put the launch of a graph, and what it does, in the place of what was launched one by one."""
    _, first, stream, spend = rows[graph.first]
    owed = edited.owe(("graph_replay_ps", 1), ("graph_node_ps", graph.num_nodes))
    launched = edited.spends.number(("graph", "launch", edited.spends[spend][2], owed))
    rows[graph.first] = (Action.SPEND.value, launched, 0, 0)
    works, at = [first], -1
    for place in graph.places:
        action, a, b, _ = rows[place]
        if action == Action.OPERATION and b == stream and works:
            works.append(a)
            at = place if at < 0 else at
        elif action == Action.OPERATION:
            _put_row(works, at, stream, rows, edited)
            works, at, stream = [a], place, b
        elif action in (Action.RANGE_BEGIN, Action.RANGE_END):
            continue
        elif action not in (Action.PAY, Action.SPEND):
            _put_row(works, at, stream, rows, edited)
            works, at = [], -1
            continue
        rows[place] = _NOTHING
    _put_row(works, at, stream, rows, edited)


def _put_row(works: Sequence[int], at: int, stream: int, rows: list[Row], edited: _Edited) -> None:
    if works:
        rows[at] = (Action.GRAPH_OPERATIONS.value, edited.tuples.number(tuple(works)), stream, 0)


def knows_lines_of_actions(saved: SavedRun) -> bool:
    """Return whether :func:`lines_of_actions` is known of a run."""
    try:
        lines_of_actions(saved)
    except UsageError:
        return False
    return True


def lines_of_actions(saved: SavedRun) -> list[list[int]]:
    """Return by actor and place the numbers of the lines at which hosts spent time for actions.

    Each action of a host that runs ahead has spent certain spans of the log, in their order; 0 is
    of no line.

    Raises:
        UsageError: The run does not say, or its hosts did what is not among the actions.
    """
    log, actions = saved.log, saved.actions
    if log.program_lines is None or actions is None:
        raise UsageError(f"{saved.path}: this run has no record of the program's lines")
    spans: dict[int, deque[tuple[str, int]]] = {}
    for host_span, line in zip(log.host_spans, log.program_lines.of_spans, strict=True):
        is_other = host_span.kind == "python" and host_span.label != _OF_PROGRAM
        if not (host_span.kind in _AROUND_ACTIONS or is_other):
            spans.setdefault(host_span.rank, deque()).append((host_span.kind, line))
    spends = actions.described.get("spends", ())
    lines = []
    for actor in actions.actors:
        own = spans.get(actor.rank, deque())
        lines.append([_line_of(row, own, spends) for row in _rows(actor)])
    if any(spans.values()):
        raise UsageError(f"{saved.path}: its hosts did what is not among the actions of its ranks")
    return lines


def _rows(actor: Actor) -> list[Row]:
    return list(zip(*[iter(actor.values)] * _WIDTH, strict=True))


def _line_of(row: Row, spans: deque[tuple[str, int]], spends: Sequence[Any]) -> int:
    """Take the spans of an action, and return the number of their line."""
    action, a, b, c = row
    line = 0
    kinds: tuple[str, ...] = ()
    if action == Action.PAY:
        kinds = ("python",) * bool(a) + ("dispatch",) * bool(b)
    elif action in (Action.OPERATION, Action.SPEND):
        _, kind, calls, _ = spends[c if action == Action.OPERATION else a]
        kinds = ("python",) * bool(calls) + (kind,)
    elif action == Action.HOST_WAIT and c:
        _, _, calls, owed = spends[c - 1]
        kinds = ("python",) * bool(calls) + ("dispatch",) * bool(owed)
    elif action == Action.HOST_READ:
        kinds = ("read",)
    elif action == Action.HOST_ALLOCATE:
        kinds = ("allocate",)
    for kind in kinds:
        # What takes no time on this machine is not in the log.
        if spans and spans[0][0] == kind:
            line = spans.popleft()[1]
    return line
