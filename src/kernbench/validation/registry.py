"""Which predictor answers which category."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from kernbench.validation.devices import Machines, presets
from kernbench.validation.predictor import Predictor
from kernbench.validation.reference import Category

# Module and class: a predictor is loaded by the processes that need it.
PREDICTORS: dict[Category, tuple[str, str]] = {
    Category.GEMM: ("kernbench.validation.gemm", "GemmPredictor"),
    Category.MEMBOUND: ("kernbench.validation.membound", "MemboundPredictor"),
    Category.COLLECTIVES: ("kernbench.validation.collectives", "CollectivePredictor"),
    Category.TP_SCALING: ("kernbench.validation.tp_scaling", "TpPredictor"),
}


def make_predictor(category: Category, machines: Machines | None = None) -> Predictor:
    """Return a new predictor of a category, for the presets or other machines."""
    module, name = PREDICTORS[category]
    maker: Callable[[Machines], Predictor] = getattr(import_module(module), name)
    return maker(machines or presets())
