"""Rows of whole layers, iterations and requests on several devices."""

from __future__ import annotations

from kernbench.validation.devices import Machines
from kernbench.validation.inference import InferencePredictor
from kernbench.validation.predictor import Answer
from kernbench.validation.reference import Row


class TpPredictor:
    """Answers a row by layers of the model, run on the row's machine with the source's stack."""

    def __init__(self, machines: Machines) -> None:
        self._inference = InferencePredictor(machines.machine_of)

    def predict(self, row: Row) -> Answer:
        if row.op in ("generate", "encode"):
            return self._inference.predict(row)
        return Answer(None, f"no composition of a {row.op} from layers")
