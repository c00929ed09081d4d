"""Notes which lines of the program launch commands and keep hosts busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernbench.clock import frame_of_program, is_of_program
from kernbench.op_log import UNKNOWN_SITE, ProgramLines

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType

    from kernbench.clock import UserSite
    from kernbench.memory import Buffer, LiveAllocation, Place
    from kernbench.op_log import OpLog, Site
    from kernbench.runtime_api.base.recorder import Recorder

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
        self._numbers = {site: number for number, site in enumerate(lines.sites)}
        self._place, self._number = self.newest_at, _NOWHERE
        """Where a result was allocated last that was written, and the number of its line: ranks
        that do the same come by one after another."""
        self._places: dict[tuple[int, int], int] = {}
        """Numbers by the identity of code, whose own hash is slow, and instruction: which line that
        is would have to be counted from the beginning of its function."""
        self._kept: dict[int, CodeType] = {}
        """The code that has an identity there."""
        recorder.span = self.span

    def span(self, values: tuple[Any, ...]) -> None:
        """Log a span of host time, and the line at which the host is."""
        self.put(values)
        self.latest = number = self.find(sys._getframe(1))
        self.newest = None
        self.put_line(number)

    def at(self, site: UserSite) -> int:
        """Return the number of a line that was found already; 0: none of the program."""
        return self._number_of((site.file, site.line)) if is_of_program(site.file) else _NOWHERE

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
                    place = self.newest_at
                    if place is not self._place:
                        self._place, self._number = place, self._number_of(place[1:])
                    return self._number
        return _NOWHERE

    def launched(self, first: int, callers: list[int]) -> None:
        """Note the lines of commands with consecutive numbers."""
        self._lines.of_commands.update(enumerate(callers, first))

    def innermost(self, frame: FrameType | None) -> int:
        """Return the number of the innermost line that is the program's own."""
        frame_type = frame_of_program(frame)
        return _NOWHERE if frame_type is None else self.line_of(frame_type)

    def line_of(self, frame: FrameType) -> int:
        """Return the number of the line at which a frame is."""
        code = frame.f_code
        place = (id(code), frame.f_lasti)
        line = self._places.get(place)
        if line is None:
            self._kept[id(code)] = code
            site = (code.co_filename, frame.f_lineno)
            line = self._places[place] = self._number_of(site)
        return line

    def _number_of(self, site: Site) -> int:
        number = self._numbers.get(site)
        if number is None:
            number = self._numbers[site] = len(self._lines.sites)
            self._lines.sites.append(site)
        return number
