"""Predicts whole layers, iterations and requests on several devices."""

from __future__ import annotations

from kernbench.accuracy.validation.predictors.clusters import ClusterPredictor
from kernbench.accuracy.validation.predictors.inference import InferencePredictor
from kernbench.accuracy.validation.predictors.layer_ops import PREFIXES, LayerPredictor
from kernbench.accuracy.validation.predictors.training import TrainingPredictor
from kernbench.accuracy.validation.rows.devices import Machines
from kernbench.accuracy.validation.rows.predictor import Answer, Predictor
from kernbench.accuracy.validation.rows.reference import Row


class TpPredictor:
    """Predicts a row from layers of the model, run on the row's machine with the source's stack."""

    def __init__(self, machines: Machines) -> None:
        self._clusters = ClusterPredictor(machines)
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
        if self._clusters.knows(row):
            return self._clusters.predict(row)
        predictor = self._by_op.get(row.op.partition(":")[0])
        if predictor is None:
            return Answer(None, f"no composition of a {row.op} from layers")
        return predictor.predict(row)
