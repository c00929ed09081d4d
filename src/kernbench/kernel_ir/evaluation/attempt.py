"""Evaluation on trial, for operations that find out whether a way works by going it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.commands import Command

if TYPE_CHECKING:
    from kernbench.kernel_ir.evaluation.evaluator import Evaluator


class Attempt:
    """Evaluation on trial: commands, tiles and loop numbers are as before when it ends."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.commands: list[Command] = []

    def __enter__(self) -> Attempt:
        run = self.evaluator
        self._before = run.commands, run.num_slots, run.num_loops, dict(run.open_loops)
        self._overflows = dict(run.overflowed), dict(run.overflows)
        self._trips = dict(run.trips)
        run.commands = self.commands
        return self

    def __exit__(self, *_: object) -> None:
        run = self.evaluator
        run.commands, run.num_slots, run.num_loops, run.open_loops = self._before
        run.overflowed, run.overflows = self._overflows
        run.trips = self._trips
