"""Measured rows as a function from a machine to their modeled times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernbench.accuracy.predictors import GEMM_DTYPES, problem_of
from kernbench.accuracy.rows import OWN, Category, Machines, Predictors, Row
from kernbench.errors import MachineError
from kernbench.hardware import Machine, parse_machine
from kernbench.ops import GemmTile
from kernbench.plans import Cached, GemmTuner, Problem, Timed

Array = npt.NDArray[np.float64]

_KEPT_TILES = 3


class Modeled(Protocol):
    """Rows that a model predicts for any machine file of one device."""

    rows: list[Row]

    def times_us(self, text: str) -> Array:
        """Return the modeled time of every row on the machine that the text describes."""
        ...

    def narrow(self, text: str) -> bool:
        """Search again for the best choices on this machine; return whether any changed."""
        ...


class Measuring:
    """How products were measured: one at a time, their operands in memory, by a device's clock."""

    def machine(self, row: Row, machine: Machine) -> Machine:
        """Return the machine as the measured kernels saw it."""
        return machine

    def cached(self, row: Row, machine: Machine, problem: Problem) -> Cached:
        """Return how much of the operands the cache held."""
        return ()

    def only_powers_of_two(self, row: Row, machine: Machine) -> bool:
        """Return whether the library had only tiles of such widths, whatever the machine has."""
        return False

    def time_us(self, row: Row, machine: Machine, kernel_us: float) -> float:
        """Return what was measured of a kernel that takes so long."""
        return kernel_us


class GemmRows:
    """GEMM rows; the candidates for the fastest tile are updated by :meth:`narrow`.

    A tile that is far from the fastest does not become it when a constant changes a little, and
    traces do not depend on constants, so timing the rows again is cheap.
    """

    def __init__(self, rows: Sequence[Row], text: str, measuring: Measuring | None = None) -> None:
        self.rows = [row for row in rows if row.dtype in GEMM_DTYPES and row.op == "gemm"]
        self._measuring = measuring or Measuring()
        self._tuner = GemmTuner(most_traces=None)
        self._tiles: list[list[GemmTile]] = []
        self.narrow(text)

    def narrow(self, text: str) -> bool:
        machine = _one(text)
        before, self._tiles = self._tiles, []
        answered = []
        for row in self.rows:
            try:
                found = self._fastest(row, machine, GemmTuner(), _KEPT_TILES)
            except MachineError:
                continue
            answered.append(row)
            self._tiles.append([each.tile for each in found])
        self.rows = answered
        return [set(each) for each in before] != [set(each) for each in self._tiles]

    def times_us(self, text: str) -> Array:
        machine = _one(text)
        found = []
        for row, tiles in zip(self.rows, self._tiles, strict=True):
            (best,) = self._fastest(row, machine, self._tuner, 1, tiles)
            found.append(self._measuring.time_us(row, machine, best.kernel_us))
        return np.array(found)

    def _fastest(
        self,
        row: Row,
        machine: Machine,
        tuner: GemmTuner,
        most: int,
        among: Sequence[GemmTile] | None = None,
    ) -> list[Timed]:
        problem = problem_of(row, GEMM_DTYPES[row.dtype])
        return tuner.fastest(
            problem,
            self._measuring.machine(row, machine),
            self._measuring.cached(row, machine, problem),
            most,
            among,
            only_powers_of_two=self._measuring.only_powers_of_two(row, machine),
        )


class PredictedRows:
    """Rows of any category, timed by its predictor."""

    def __init__(self, rows: Sequence[Row], text: str, predictors: Predictors = OWN) -> None:
        self.rows = list(rows)
        self._predictors = predictors
        times = self._answers(text)
        self.rows = [row for row, time in zip(rows, times, strict=True) if time is not None]

    def narrow(self, text: str) -> bool:
        """Do nothing: the predictor considers all choices every time."""
        return False

    def times_us(self, text: str) -> Array:
        return np.array(self._answers(text), dtype=np.float64)

    def _answers(self, text: str) -> list[float | None]:
        predictor = self._predictors.make(self.rows[0].category, Machines([(text, _ORIGIN)]))
        return [predictor.predict(row).time_us for row in self.rows]


@dataclass(frozen=True, slots=True)
class RowModel:
    """How rows are modeled: how products were measured, and who predicts others."""

    measuring: Measuring = field(default_factory=Measuring)
    predictors: Predictors = OWN

    def of(self, category: Category, rows: Sequence[Row], text: str) -> Modeled:
        """Return the rows that the model can predict on the machine that a text describes."""
        if category is Category.GEMM:
            return GemmRows(rows, text, self.measuring)
        return PredictedRows(rows, text, self.predictors)


_ORIGIN = "the machine that is being calibrated"


def _one(text: str) -> Machine:
    return parse_machine(text, _ORIGIN, 1)
