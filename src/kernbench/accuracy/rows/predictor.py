"""The interface between scoring and the predictors of each category."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import md5
from importlib import import_module
from typing import Any, Protocol

from kernbench.accuracy.rows.devices import Machines, presets
from kernbench.accuracy.rows.forms import Category
from kernbench.accuracy.rows.reference import Row
from kernbench.errors import KernbenchError


class Ran(StrEnum):
    """What the engine ran for a row."""

    KERNELS = "kernels"
    """kernbench's own, in Triton."""
    LIBRARY = "library kernels"
    """Those of a vendor's or a stack's library, timed by their tiles."""
    COLLECTIVE = "collective"
    """Its schedule, on the machine's links."""
    LAYERS = "layers"
    """Layers, or operators of one, put together by the rules of ``kernbench plan``."""
    PROGRAM = "program"
    """A whole program, as its user would run it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The modeled time of a row, or the reason why there is none."""

    time_us: float | None
    why_not: str = ""
    """For a row without an answer: what the model lacks, in equal words for similar rows."""
    how: str = ""
    """The configuration or algorithm that the time is of."""
    host_share: float = 0.0
    """The share of a program's time in which devices wait for their hosts, from 0 to 1."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """What the devices' time of a program is of, by kind of kernels."""
    peak_bytes: float = 0.0
    """The peak of memory of a program's rank; 0 where it is not known."""
    ran: Ran | None = None
    """What was run for the time; None where there is none."""
    composed_us: float | None = None
    """A time that formulas give without a run of the engine. It is no answer (``time_us`` is None):
    no command of a user gives it, so it is part of no error that is published (ADR-0235)."""


class Predictor(Protocol):
    """Predicts the rows of one category.

    Each process makes and keeps its own, which may therefore cache; rows arrive grouped by device.
    For what it cannot predict (an op, a dtype, a machine without links) it returns an
    :class:`Answer` with a reason; an exception means that the row itself is invalid.
    """

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of what the row measured."""
        ...


def of_layers(time_us: Callable[[], float], how: str) -> Answer:
    """Return the answer of layers that are run, or one whose reason is the error of the run."""
    try:
        return Answer(time_us(), how=how, ran=Ran.LAYERS)
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


_ROOM = "kernbench.accuracy.predictors"


@dataclass(frozen=True, slots=True)
class Predictors:
    """Classes of predictors by category, as ``MODULE:CLASS``: a process imports those it needs."""

    by_category: Mapping[Category, str]
    settings: Mapping[Category, Mapping[str, Any]] = field(default_factory=dict)
    """What a category's class is given besides the machines."""

    def make(self, category: Category, machines: Machines | None = None) -> Predictor:
        """Return a new predictor of a category, for the given machines or the presets."""
        module, _, name = self.by_category[category].partition(":")
        maker: Callable[..., Predictor] = getattr(import_module(module), name)
        return maker(machines or presets(), **self.settings.get(category, {}))


OWN = Predictors(
    {
        Category.GEMM: f"{_ROOM}.gemm:GemmPredictor",
        Category.ATTENTION: f"{_ROOM}.attention:AttentionPredictor",
        Category.MEMBOUND: f"{_ROOM}.membound:MemboundPredictor",
        Category.COLLECTIVES: f"{_ROOM}.collectives:CollectivePredictor",
    }
)
"""Those of kernels that users time themselves, with nothing around them."""


_SIZE_OF_EXCHANGE = re.compile(r"tokens/rank \d+, |; plus notify.*")
"""What differs along the curve of an exchange of experts' rows, as the rows' notes say it."""

PARTS = 4
"""The default number of parts that a calibration cuts rows into."""


def part_of(row: Row, parts: int) -> int:
    """Return which of ``parts`` parts a row is in, by a hash that keeps whole shapes together.

    GEMMs go by their weights (n x k), elementwise rows by rows x cols, collectives by operation
    and ranks, whole models by model and split, programs by name and model (``Form.together``): rows
    that differ in one size only are never on both sides of a split. Exchanges of experts' rows go
    by the whole curve, which the note says: hidden size, experts and the SMs that copy.
    """
    key = "x".join(row.fields.get(name, "") for name in row.form.together)
    note = row.fields.get("note", "")
    if row.category is Category.COLLECTIVES and note.startswith("tokens/rank"):
        key = "x".join([key, row.dtype, _SIZE_OF_EXCHANGE.sub("", note)])
    return int(md5(key.encode()).hexdigest(), 16) % parts


def is_apart(row: Row) -> bool:
    """Return whether a row is held out: calibration scores it, and never fits to it."""
    return part_of(row, PARTS) == 0
