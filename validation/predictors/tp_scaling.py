"""Predicts whole layers, iterations and requests on several devices."""

from __future__ import annotations

from kernbench.accuracy.rows import Answer, Machines, Predictor, Row
from validation.predictors.inference import InferencePredictor
from validation.predictors.layer_ops import PREFIXES, LayerPredictor
from validation.predictors.training import TrainingPredictor


class TpPredictor:
    """Predicts a row from layers of the model, run on the row's machine with the source's stack."""

    def __init__(self, machines: Machines) -> None:
        inference = InferencePredictor(machines.machine_of)
        training = TrainingPredictor(machines.machine_of)
        layers = LayerPredictor(machines)
        self._by_op: dict[str, Predictor] = {
            "generate": inference,
            "encode": inference,
            "train_iteration": training,
            "train_throughput": training,
            **dict.fromkeys(PREFIXES, layers),
        }

    def predict(self, row: Row) -> Answer:
        predictor = self._by_op.get(row.op.partition(":")[0])
        if predictor is None:
            return Answer(None, f"no composition of a {row.op} from layers")
        return predictor.predict(row)
