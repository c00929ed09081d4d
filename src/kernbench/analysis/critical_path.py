"""The critical path of a run: what, one after another, its time is made of (ADR-0153)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from kernbench.op_log import HostSpan, Instance, OpLog, Window

Kind = Literal[
    "kernel", "collective", "copy", "fill",
    "launch", "capture", "python", "dispatch", "allocate", "read", "wait", "host",
    "interruption", "restart", "storage",
]  # fmt: skip
"""What runs: a template's kind on a device, a host span's kind on a host; ``host`` is time of a
host that no span names."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the critical path; the next one begins where it ends."""

    rank: int
    kind: Kind
    name: str
    """The kernel or collective, or what the host does."""
    start_ps: int
    end_ps: int
    launch: int = 0
    """The launch id of the command, as in the op log; 0: the host."""

    @property
    def duration_ps(self) -> int:
        return self.end_ps - self.start_ps


@dataclass(frozen=True, slots=True)
class _Place:
    """A point of the path: the end of a command at one of its ranks, or a moment of a host."""

    rank: int
    time_ps: int
    command: Instance | None = None
    wake: int | None = None
    """The number of the wait by whose end it was reached."""


class _Wake(NamedTuple):
    """A rank's wait is over, as another one has done something."""

    time_ps: int
    number: int
    """Its place among those of all ranks."""
    by: int


class _Hosts:
    """What the host of each rank did, by when it ended."""

    def __init__(self, log: OpLog) -> None:
        self._wakes: dict[int, list[_Wake]] = {}
        for number, (rank, time_ps, by) in enumerate(log.woken):
            if by != rank:
                self._wakes.setdefault(rank, []).append(_Wake(time_ps, number, by))
        self._spans: dict[int, list[HostSpan]] = {}
        for span in log.host_spans:
            # A span without duration explains nothing.
            if span.end_ps > span.start_ps:
                self._spans.setdefault(span.rank, []).append(span)
        self._ends: dict[int, list[int]] = {}
        for rank, spans in self._spans.items():
            spans.sort(key=lambda span: (span.end_ps, -span.start_ps))
            self._ends[rank] = [span.end_ps for span in spans]

    def latest(self, rank: int, time_ps: int) -> HostSpan | None:
        """Return the last span of a rank that ends at a time or before."""
        position = bisect_right(self._ends.get(rank, []), time_ps)
        return self._spans[rank][position - 1] if position else None

    def latest_wake(self, rank: int, time_ps: int, before: int) -> _Wake | None:
        """Return the last wait of a rank that another one ended, at a time or earlier.

        Of those with numbers below ``before``: at one time ranks may wake each other in turn.
        """
        wakes = self._wakes.get(rank, [])
        position = bisect_left(wakes, _Wake(time_ps, before, -1))
        return wakes[position - 1] if position else None


def critical_path(log: OpLog, within: Window | None = None) -> list[Segment]:
    """Return the segments from the start of a run to its end, in order of time.

    With a window, those parts of them that lie in it.

    Each ends where the next one starts: their durations add up to the end of the log. Going back
    from there, each is what the one after it waited for last: the launch by its host, a command
    of its stream or device, the last rank that came to a collective, what the host waited for.
    """
    commands = {instance.launch_id: instance for instance in log.instances}
    hosts = _Hosts(log)
    woken = _woken_by(log)
    segments: list[Segment] = []
    place = _last_place(log)
    before = len(log.woken)
    most = 2 * (len(log.host_spans) + len(log.woken) + sum(len(e.ranks) for e in log.instances)) + 8
    steps = 0
    while place is not None:
        steps += 1
        if steps > most:
            raise log.contradiction(f"what waits for what goes round at {place.time_ps} ps")
        if place.wake is not None:
            before = place.wake
        step = (
            _before_host(place, before, hosts, woken, commands)
            if place.command is None
            else _before_command(place, place.command, log, commands)
        )
        place = None
        for segment in step:
            if isinstance(segment, Segment):
                if segment.duration_ps:
                    segments.append(segment)
            else:
                place = segment
    segments.reverse()
    return segments if within is None else clipped(segments, within)


def clipped(path: Sequence[Segment], within: Window) -> list[Segment]:
    """Return the parts of the segments of a critical path that lie in a window."""
    return [
        replace(segment, start_ps=start_ps, end_ps=end_ps)
        for segment in path
        for start_ps, end_ps in within.clipped(segment.rank, segment.start_ps, segment.end_ps)
    ]


def _woken_by(log: OpLog) -> dict[tuple[int, int], int]:
    """Return the launch ids that waits ended with, by rank and end."""
    values = iter(log.plain_waits)
    return {
        (rank, end_ps): log.number_of(after)
        for rank, end_ps, after in zip(*[values] * 3, strict=True)
    }


def _last_place(log: OpLog) -> _Place | None:
    spans = (_Place(span.rank, span.end_ps) for span in log.host_spans)
    commands = (
        _Place(rank, end_ps, instance)
        for instance in log.instances
        for rank, end_ps in zip(instance.ranks, instance.ends_ps, strict=True)
    )
    # Of equals the first one: a host that has waited for the device.
    return max((*spans, *commands), key=lambda place: place.time_ps, default=None)


Step = Iterator[Segment | _Place]
"""Segments going back in time, then where to go on from; without a place, the path is complete."""


def _before_host(
    place: _Place,
    before: int,
    hosts: _Hosts,
    woken: dict[tuple[int, int], int],
    commands: dict[int, Instance],
) -> Step:
    rank, time_ps = place.rank, place.time_ps
    span = hosts.latest(rank, time_ps)
    wake = hosts.latest_wake(rank, time_ps, before)
    if wake is not None and wake.time_ps > (0 if span is None else span.end_ps):
        # It has waited for what another rank's host did.
        yield Segment(rank, "host", "nothing that is logged", wake.time_ps, time_ps)
        yield _Place(wake.by, wake.time_ps, wake=wake.number)
        return
    if span is None:
        if rank and time_ps:
            # It was started by the program around it, which is rank 0's in the log.
            yield _Place(0, time_ps)
        elif time_ps:
            yield Segment(rank, "host", "before the first launch", 0, time_ps)
        return
    yield Segment(rank, "host", "nothing that is logged", span.end_ps, time_ps)
    command = commands.get(woken.get((rank, span.end_ps), 0)) if span.kind == "wait" else None
    if command is None:
        yield Segment(rank, span.kind, span.label, span.start_ps, span.end_ps)
        yield _Place(rank, span.start_ps)
        return
    position = command.ranks.index(rank) if rank in command.ranks else 0
    ended_ps = command.ends_ps[position]
    # The host may have had other things to do before it looked.
    yield Segment(rank, "wait", span.label, ended_ps, span.end_ps)
    yield _Place(command.ranks[position], ended_ps, command)


def _before_command(
    place: _Place, command: Instance, log: OpLog, commands: dict[int, Instance]
) -> Step:
    template, position = command.template, command.ranks.index(place.rank)
    # A collective begins when its last rank has come.
    start_ps = max(command.starts_ps)
    if command.starts_ps[position] != start_ps:
        position = command.starts_ps.index(start_ps)
    start_ps = min(start_ps, place.time_ps)
    yield Segment(
        place.rank, template.kind, template.name, start_ps, place.time_ps, command.launch_id
    )
    rank = command.ranks[position]
    before = commands.get(log.number_of(command.after[position])) if command.after else None
    if before is None:
        yield _Place(rank, start_ps)
        return
    theirs = before.ranks.index(rank) if rank in before.ranks else 0
    ended_ps = before.ends_ps[theirs]
    if ended_ps != start_ps:
        raise log.contradiction(
            f"{template.name} (launch {command.launch_id}) starts at {start_ps} ps after "
            f"{before.template.name} (launch {before.launch_id}), which ends at {ended_ps} ps"
        )
    yield _Place(before.ranks[theirs], ended_ps, before)
