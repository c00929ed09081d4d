"""What a run puts into its op log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from kernbench.memory import Buffer, LiveAllocation, Place
from kernbench.op_log import UNKNOWN_SITE, Each, OpLog, ProgramLines, Site, Template
from kernbench.runtime_api.base.memory_recorder import ProgramPlaces


class Recorder:
    """Numbers the completed commands of a run and logs them, with the spans of host time.

    It appends to the log's own lists: a method of the log for each would cost each launch a call.
    """

    def __init__(self, op_log: OpLog) -> None:
        self._op_log = op_log
        self._put_command = op_log.plain_commands.extend
        self.span: Callable[[tuple[Any, ...]], None] = op_log.plain_spans.extend
        """Takes the rank, the kind, the label, the start and the end of a span of host time."""
        self.waited = op_log.plain_waits.extend
        """Takes the rank and the end of a span of waiting, and what that ended with."""
        self._num_logged = 0

    def command(
        self,
        template: Any,
        ranks: Each,
        sips: Each,
        starts_ps: Each,
        ends_ps: Each,
        stream: str,
        after: Each,
        addresses: tuple[int, ...] = (),
    ) -> int:
        """Log a completed command, and return its number.

        Of one rank the arguments are numbers, of several, tuples. ``after`` is what it waited for
        until it started.
        """
        number = self._num_logged = self._num_logged + 1
        self._put_command(
            (number, template, ranks, sips, starts_ps, ends_ps, stream, after, addresses)
        )
        return number

    def collective(self) -> int:
        """Return the number of a collective that starts, under which others may wait for it."""
        self._op_log.collectives.append(0)
        return -len(self._op_log.collectives)

    def collective_ended(self, collective: int, number: int, sites: tuple[Site, ...]) -> None:
        """Note the number that a collective has as a completed command, and who called it where."""
        self._op_log.collectives[-collective - 1] = number
        self._op_log.sites[number] = sites

    def in_a_row(
        self,
        ranks: tuple[int, ...],
        sips: tuple[int, ...],
        stream: str,
        after: int,
        launched_ps: list[int],
        templates: list[Template],
        starts_ps: list[int],
        ends_ps: list[int],
    ) -> int:
        """Log consecutive completed commands of one rank; the op log keeps the lists.

        ``after`` is what the first one waited for, ``launched_ps`` when the launch of each reached
        the device. Returns the number of the last one.
        """
        columns = (launched_ps, templates, starts_ps, ends_ps)
        self._op_log.plain_instances.extend(
            (self._num_logged + 1, ranks, sips, stream, after, *columns)
        )
        self._num_logged += len(templates)
        return self._num_logged


_NOWHERE = 0


class LineRecorder:
    """Writes to a run's log which line of the program each span of a host is of.

    A command is of the line whose host launched it last: that is logged before the command is
    enqueued, and no other rank runs in between.
    """

    def __init__(self, log: OpLog, recorder: Recorder) -> None:
        log.program_lines = lines = ProgramLines()
        self._lines = lines
        self.put = log.plain_spans.extend
        """Takes a span of host time; whoever knows its line gives it these three."""
        self.put_line = lines.of_spans.append
        self.ended: Callable[[int, int], object] = lines.of_commands.setdefault
        """Notes the line of a command by its number in the log. What is not logged has the number
        of what it waited for, which is known by then."""
        self.latest = _NOWHERE
        """The number of the line that has launched something last."""
        self.newest: LiveAllocation | None = None
        """The result that an operation has allocated since the last span."""
        self.newest_at: Place = ("", *UNKNOWN_SITE)
        """Where it has: in which layers, file and line."""
        self.find: Callable[[FrameType | None], int] = self.innermost
        """Returns the number of the line of the program that runs, from a frame on."""
        self._numbers: dict[Place, int] = {self.newest_at: _NOWHERE}
        self._place, self._number = self.newest_at, _NOWHERE
        """Where something happened last, and the number of that: ranks that do the same come by
        one after another."""
        self.places = ProgramPlaces()
        recorder.span = self.span

    def span(self, values: tuple[Any, ...]) -> None:
        """Log a span of host time, and the line at which the host is."""
        self.put(values)
        self.latest = number = self.find(sys._getframe(1))
        self.newest = None
        self.put_line(number)

    def that_made(self, buffers: Iterable[Buffer]) -> int:
        """Return the number of the line of a launch that writes some buffers; 0: not known.

        An operation of kernbench that has just allocated its result launches what writes it: the
        line of both is the same, and stacks are slow to walk.
        """
        live_allocation = self.newest
        if live_allocation is not None:
            self.newest = None
            for buffer in buffers:
                if buffer.allocation is live_allocation:
                    return self.number_of(self.newest_at)
        return _NOWHERE

    def launched(self, first: int, callers: list[int]) -> None:
        """Note the lines of commands with consecutive numbers."""
        self._lines.of_commands.update(enumerate(callers, first))

    def innermost(self, frame: FrameType | None) -> int:
        """Return the number of the innermost line that is the program's own."""
        return self.number_of(self.places.find(frame))

    def number_of(self, place: Place) -> int:
        """Return the number of a module and a line of the program; 0: no line."""
        if place is not self._place:
            module, file, line = place
            known = (str(module), file, line)
            number = self._numbers.get(known)
            if number is None:
                number = self._numbers[known] = len(self._lines.sites)
                self._lines.sites.append((file, line))
                self._lines.modules.append(known[0])
            self._place, self._number = place, number
        return self._number
