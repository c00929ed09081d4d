"""Rows of whole layers, iterations and requests on several devices."""

from __future__ import annotations

from kernbench.validation.devices import Machines
from kernbench.validation.predictor import Answer
from kernbench.validation.reference import Row


class TpPredictor:
    """Answers no row: kernbench does not compose whole models of a serving stack yet."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines

    def predict(self, row: Row) -> Answer:
        return Answer(None, f"no composition of a {row.op} from layers")
