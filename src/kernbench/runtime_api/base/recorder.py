"""What a run puts into its op log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernbench.op_log import Each, OpLog, Site, Template


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
