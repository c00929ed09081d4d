"""Measured rows as functions from a machine to their modeled times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernbench.accuracy.predictors import GEMM_DTYPES, library_of, problem_of
from kernbench.accuracy.rows import OWN, Answer, Category, Machines, Predictor, Predictors, Row
from kernbench.errors import MachineError
from kernbench.hardware import Machine, changed_machine
from kernbench.ops import GemmTile
from kernbench.plans import GemmTuner, Timed

Array = npt.NDArray[np.float64]

_KEPT_TILES = 3


class Modeled(Protocol):
    """Rows that a model predicts for any machine file of one device."""

    rows: list[Row]

    refused: list[tuple[Row, str]]
    """Rows that it cannot predict, and why."""

    def times_us(self, machine: Machine) -> Array:
        """Return the modeled time of every row on a machine."""
        ...

    def narrow(self, machine: Machine) -> bool:
        """Search again for the best choices on this machine; return whether any changed."""
        ...


class GemmRows:
    """GEMM rows; the candidates for the fastest tile are updated by :meth:`narrow`.

    A tile that is far from the fastest does not become it when a constant changes a little, and
    traces do not depend on constants, so timing the rows again is cheap.
    """

    def __init__(self, rows: Sequence[Row], machine: Machine) -> None:
        self.rows = [row for row in rows if row.dtype in GEMM_DTYPES and row.op == "gemm"]
        self.refused = [
            (row, f"no kernel for op {row.op}" if row.op != "gemm" else _no_dtype(row.dtype))
            for row in rows
            if row not in self.rows
        ]
        self._tuner = GemmTuner(most_traces=None)
        self._tiles: list[list[GemmTile]] = []
        self.narrow(machine)

    def narrow(self, machine: Machine) -> bool:
        before, self._tiles = self._tiles, []
        answered = []
        for row in self.rows:
            try:
                result = self._fastest(row, machine, GemmTuner(), _KEPT_TILES)
            except MachineError as error:
                self.refused.append((row, str(error)))
                continue
            answered.append(row)
            self._tiles.append([timed.tile for timed in result])
        self.rows = answered
        return [set(gemm_tiles) for gemm_tiles in before] != [set(tile) for tile in self._tiles]

    def times_us(self, machine: Machine) -> Array:
        numbers = []
        for row, tiles in zip(self.rows, self._tiles, strict=True):
            (best,) = self._fastest(row, machine, self._tuner, 1, tiles)
            numbers.append(best.kernel_us)
        return np.array(numbers)

    def _fastest(
        self,
        row: Row,
        machine: Machine,
        tuner: GemmTuner,
        most: int,
        among: Sequence[GemmTile] | None = None,
    ) -> list[Timed]:
        problem = problem_of(row, GEMM_DTYPES[row.dtype])
        return tuner.fastest(problem, machine, (), most, among)


class _OneMachine(Machines):
    """The machine that is fitted, whatever the device of a row is called."""

    def __init__(self, machine: Machine) -> None:
        self.use(machine)

    def use(self, machine: Machine) -> None:
        """Answer with another machine from now on."""
        self._machine, self._sized = machine, {machine.num_sips: machine}

    def machine_of(self, device: str, num_sips: int = 1) -> Machine:
        if num_sips not in self._sized:
            self._sized[num_sips] = changed_machine(self._machine, {}, num_sips)
        return self._sized[num_sips]

    def cluster_of(self, source: str, device: str, num_nodes: int, per_node: int) -> None:
        return None


class PredictedRows:
    """Rows of any category, timed by its predictor."""

    def __init__(self, rows: Sequence[Row], machine: Machine, predictors: Predictors = OWN) -> None:
        self.rows = list(rows)
        self._predictors = predictors
        self._kept: tuple[_OneMachine, Predictor] | None = None
        pairs = list(zip(rows, self._answers(machine), strict=True))
        self.rows = [row for row, answer in pairs if answer.time_us is not None]
        self.refused = [(row, answer.why_not) for row, answer in pairs if answer.time_us is None]

    def narrow(self, machine: Machine) -> bool:
        """Do nothing: the predictor considers all choices every time."""
        return False

    def times_us(self, machine: Machine) -> Array:
        return np.array([answer.time_us for answer in self._answers(machine)], dtype=np.float64)

    def _answers(self, machine: Machine) -> list[Answer]:
        category = self.rows[0].category
        if self._kept is None:
            machines = _OneMachine(machine)
            predictor = self._predictors.make(category, machines)
            if category is not Category.COLLECTIVES and self._predictors is OWN:
                # Their traces, which do not depend on constants, are all that they keep.
                self._kept = machines, predictor
        else:
            machines, predictor = self._kept
            machines.use(machine)
        return [predictor.predict(row) for row in self.rows]


def modeled_rows(
    category: Category, rows: Sequence[Row], machine: Machine, predictors: Predictors
) -> Modeled:
    """Return the rows that can be predicted on a machine.

    Products are kernbench's own only where the machine's library has none, as those of programs.
    """
    if category is Category.GEMM and not any(library_of(row, machine) for row in rows):
        return GemmRows(rows, machine)
    return PredictedRows(rows, machine, predictors)


def _no_dtype(name: str) -> str:
    return f"no Triton dtype for {name}; known: {', '.join(GEMM_DTYPES)}"
