"""The predictor of each category."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from kernbench.accuracy.programs import ProgramFiles
from kernbench.accuracy.validation.rows.devices import Machines, presets
from kernbench.accuracy.validation.rows.forms import Category
from kernbench.accuracy.validation.rows.predictor import Predictor

# Module and class by name: only processes that need a predictor import it.
PREDICTORS: dict[Category, tuple[str, str]] = {
    Category.GEMM: ("kernbench.accuracy.validation.predictors.gemm", "GemmPredictor"),
    Category.MEMBOUND: ("kernbench.accuracy.validation.predictors.membound", "MemboundPredictor"),
    Category.ATTENTION: (
        "kernbench.accuracy.validation.predictors.attention",
        "AttentionPredictor",
    ),
    Category.MOE: ("kernbench.accuracy.validation.predictors.libraries.moe", "MoePredictor"),
    Category.MLA: ("kernbench.accuracy.validation.predictors.libraries.mla", "MlaPredictor"),
    Category.LINEAR_ATTENTION: (
        "kernbench.accuracy.validation.predictors.libraries.linear_attention",
        "LinearAttentionPredictor",
    ),
    Category.COLLECTIVES: (
        "kernbench.accuracy.validation.predictors.collectives",
        "CollectivePredictor",
    ),
    Category.TP_SCALING: ("kernbench.accuracy.validation.predictors.tp_scaling", "TpPredictor"),
    Category.PROGRAMS: (
        "kernbench.accuracy.validation.predictors.families.predictor",
        "ProgramPredictor",
    ),
}


def make_predictor(
    category: Category, machines: Machines | None = None, programs: ProgramFiles | None = None
) -> Predictor:
    """Return a new predictor of a category, for the given machines or the presets.

    ``programs`` are the files of whole programs; only their predictor asks.
    """
    module, name = PREDICTORS[category]
    maker: Callable[..., Predictor] = getattr(import_module(module), name)
    more = {"files": programs} if category is Category.PROGRAMS else {}
    return maker(machines or presets(), **more)
