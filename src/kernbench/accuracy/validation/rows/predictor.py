"""The interface between scoring and the predictors of each category."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kernbench.accuracy.validation.rows.reference import Row
from kernbench.errors import KernbenchError


@dataclass(frozen=True, slots=True)
class Answer:
    """The modeled time of a row, or the reason why there is none."""

    time_us: float | None
    why_not: str = ""
    """For a row without an answer: what the model lacks, in equal words for similar rows."""
    how: str = ""
    """The configuration or algorithm that the time is of."""
    host_share: float = 0.0
    """Of a program: the share of its time in which devices wait for their hosts, from 0 to 1."""


class Predictor(Protocol):
    """Predicts the rows of one category.

    Each process makes and keeps its own, which may therefore cache; rows arrive grouped by device.
    For what it cannot predict (an op, a dtype, a machine without links) it returns an
    :class:`Answer` with a reason; an exception means that the row itself is invalid.
    """

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of what the row measured."""
        ...


def answered(time_us: Callable[[], float], how: str) -> Answer:
    """Return the answer of a run, or one whose reason is the error of the run."""
    try:
        return Answer(time_us(), how=how)
    except KernbenchError as error:
        return Answer(None, _short(error))
    except ExceptionGroup as errors:
        # All ranks fail for the same reason: the first one's is given.
        cause = errors.exceptions[0]
        if not isinstance(cause, KernbenchError):
            raise
        return Answer(None, _short(cause))


def _short(error: BaseException) -> str:
    return str(error).split(";")[0].split("\n")[0]
