"""Measured rows as a function from a machine to their modeled times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernbench.accuracy.validation import (
    GEMM_DTYPES,
    Category,
    GemmTuner,
    Machines,
    Problem,
    Row,
    Timed,
    gemm_harness,
    make_predictor,
    repeated_kernels,
)
from kernbench.errors import MachineError
from kernbench.hardware import Machine, parse_machine
from kernbench.ops import GemmTile

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


class GemmRows:
    """GEMM rows; the candidates for the fastest tile are updated by :meth:`narrow`.

    A tile that is far from the fastest does not become it when a constant changes a little, and
    traces do not depend on constants, so timing the rows again is cheap.
    """

    def __init__(self, rows: Sequence[Row], text: str) -> None:
        self.rows = [row for row in rows if row.dtype in GEMM_DTYPES and row.op == "gemm"]
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
            found.append(gemm_harness(row.source, machine.name).time_us(best.kernel_us))
        return np.array(found)

    def _fastest(
        self,
        row: Row,
        machine: Machine,
        tuner: GemmTuner,
        most: int,
        among: Sequence[GemmTile] | None = None,
    ) -> list[Timed]:
        problem = Problem.of(row, GEMM_DTYPES[row.dtype])
        harness = gemm_harness(row.source, machine.name)
        met = harness.met(machine, repeated_kernels(row))
        return tuner.fastest(problem, met, harness, most, among)


class PredictedRows:
    """Rows of any category, timed by its predictor."""

    def __init__(self, rows: Sequence[Row], text: str) -> None:
        self.rows = list(rows)
        times = self._answers(text)
        self.rows = [row for row, time in zip(rows, times, strict=True) if time is not None]

    def narrow(self, text: str) -> bool:
        """Do nothing: the predictor considers all choices every time."""
        return False

    def times_us(self, text: str) -> Array:
        return np.array(self._answers(text), dtype=np.float64)

    def _answers(self, text: str) -> list[float | None]:
        predictor = make_predictor(self.rows[0].category, Machines([(text, _ORIGIN)]))
        return [predictor.predict(row).time_us for row in self.rows]


def modeled(category: Category, rows: Sequence[Row], text: str) -> Modeled:
    """Return the rows that the model can predict on the machine that a text describes."""
    return GemmRows(rows, text) if category is Category.GEMM else PredictedRows(rows, text)


_ORIGIN = "the machine that is being calibrated"


def _one(text: str) -> Machine:
    return parse_machine(text, _ORIGIN, 1)
