"""What a run puts into its op log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernbench.op_log import Each, OpLog, Template


class Recorder:
    """Numbers the completed commands of a run and logs them, with the spans of host time.

    It appends to the log's own lists: a method of the log for each would cost each launch a call.
    """

    def __init__(self, op_log: OpLog) -> None:
        self._op_log = op_log
        self._put_command = op_log.plain_commands.extend
        self.span = op_log.plain_spans.extend
        """Takes the rank, the kind, the label, the start and the end of a span of host time."""
        self._num_logged = 0

    def command(
        self,
        template: Any,
        ranks: Each,
        sips: Each,
        starts_ps: Each,
        ends_ps: Each,
        stream: str,
        addresses: tuple[int, ...] = (),
    ) -> None:
        """Log a completed command; of one rank the arguments are numbers, of several, tuples."""
        number = self._num_logged = self._num_logged + 1
        self._put_command((number, template, ranks, sips, starts_ps, ends_ps, stream, addresses))

    def in_a_row(
        self,
        ranks: tuple[int, ...],
        sips: tuple[int, ...],
        stream: str,
        templates: list[Template],
        starts_ps: list[int],
        ends_ps: list[int],
    ) -> None:
        """Log consecutive completed commands of one rank; the op log keeps the lists."""
        columns = (templates, starts_ps, ends_ps)
        self._op_log.plain_instances.extend((self._num_logged + 1, ranks, sips, stream, *columns))
        self._num_logged += len(templates)
