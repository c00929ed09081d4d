"""What answers a row: the contract between the scoring and the models of each category."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kernbench.accuracy.validation.rows.reference import Row
from kernbench.errors import KernbenchError


@dataclass(frozen=True, slots=True)
class Answer:
    """The modeled time of a row, or why there is none."""

    time_us: float | None
    why_not: str = ""
    """For a row without an answer: what the model does not know, the same text for like rows."""
    how: str = ""
    """The configuration or algorithm that the time is of."""


class Predictor(Protocol):
    """Answers the rows of one category.

    A process makes its own and keeps it, so it may cache; rows arrive grouped by device. What it
    cannot answer (an op, a dtype, a machine without links) is an :class:`Answer` with a reason, so
    that the row is counted; an exception means that the row itself is wrong.
    """

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of what the row measured."""
        ...


def answered(time_us: Callable[[], float], how: str) -> Answer:
    """Return an answer by running a program, or what the program failed with as the reason."""
    try:
        return Answer(time_us(), how=how)
    except KernbenchError as error:
        return Answer(None, _short(error))
    except ExceptionGroup as errors:
        # Ranks fail alike: the first one's reason is that of all.
        cause = errors.exceptions[0]
        if not isinstance(cause, KernbenchError):
            raise
        return Answer(None, _short(cause))


def _short(error: BaseException) -> str:
    return str(error).split(";")[0].split("\n")[0]
