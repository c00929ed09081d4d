"""The predictor of each category of published rows."""

from __future__ import annotations

from kernbench.accuracy.rows import Category, Machines, Predictor, Predictors
from validation.programs import ProgramFiles

_ROOM = "validation.predictors"
PREDICTORS: dict[Category, str] = {
    Category.GEMM: f"{_ROOM}.gemm:GemmPredictor",
    Category.MEMBOUND: f"{_ROOM}.membound:MemboundPredictor",
    Category.ATTENTION: f"{_ROOM}.attention:AttentionPredictor",
    Category.MOE: f"{_ROOM}.libraries.moe:MoePredictor",
    Category.MLA: f"{_ROOM}.libraries.mla:MlaPredictor",
    Category.LINEAR_ATTENTION: f"{_ROOM}.libraries.linear_attention:LinearAttentionPredictor",
    Category.COLLECTIVES: f"{_ROOM}.collectives:CollectivePredictor",
    Category.TP_SCALING: f"{_ROOM}.tp_scaling:TpPredictor",
    Category.PROGRAMS: f"{_ROOM}.families.predictor:ProgramPredictor",
    Category.SERVING: f"{_ROOM}.serving:ServingPredictor",
}


def published(files: ProgramFiles | None = None) -> Predictors:
    """Return the predictors of published rows; ``files`` are those of whole programs."""
    run = (Category.PROGRAMS, Category.SERVING)
    return Predictors(PREDICTORS, {category: {"files": files} for category in run})


def make_predictor(
    category: Category, machines: Machines | None = None, files: ProgramFiles | None = None
) -> Predictor:
    """Return a new predictor of a category, for the given machines or the presets."""
    return published(files).make(category, machines)
