"""How accurate the model is: measured rows, predictors, and the error table."""

from kernbench.accuracy.validation.plans.layouts import (
    GIB,
    AllowedSizes,
    Job,
    Layout,
    layouts,
    memory,
)
from kernbench.accuracy.validation.plans.models import ModelShape, model_of
from kernbench.accuracy.validation.plans.tiles import GemmTuner, Timed
from kernbench.accuracy.validation.plans.times import PlanTimes, TimedLayout
from kernbench.accuracy.validation.plans.wires import node_of
from kernbench.accuracy.validation.predictors.gemm import DTYPES as GEMM_DTYPES
from kernbench.accuracy.validation.predictors.library_rows import LibraryPredictor, MeasuredKernels
from kernbench.accuracy.validation.rows.devices import Machines, presets
from kernbench.accuracy.validation.rows.forms import Category
from kernbench.accuracy.validation.rows.harness import gemm_harness
from kernbench.accuracy.validation.rows.parts import is_apart, part_of
from kernbench.accuracy.validation.rows.predictor import Answer, Predictor, Ran
from kernbench.accuracy.validation.rows.problem import Problem
from kernbench.accuracy.validation.rows.reference import (
    Row,
    category_of,
    read_rows,
    sampled,
)
from kernbench.accuracy.validation.rows.registry import make_predictor
from kernbench.accuracy.validation.rows.repeated import repeated_kernels
from kernbench.accuracy.validation.scores.report import (
    dump_plot,
    errors_by_machine,
    format_of_plot,
    render_page,
    render_text,
    to_json,
)
from kernbench.accuracy.validation.scores.score import (
    Errors,
    Scored,
    answer_rows,
    errors_of,
    measure,
)

__all__ = [
    "GEMM_DTYPES",
    "GIB",
    "AllowedSizes",
    "Answer",
    "Category",
    "Errors",
    "GemmTuner",
    "Job",
    "Layout",
    "LibraryPredictor",
    "Machines",
    "MeasuredKernels",
    "ModelShape",
    "PlanTimes",
    "Predictor",
    "Problem",
    "Ran",
    "Row",
    "Scored",
    "Timed",
    "TimedLayout",
    "answer_rows",
    "category_of",
    "dump_plot",
    "errors_by_machine",
    "errors_of",
    "format_of_plot",
    "gemm_harness",
    "is_apart",
    "layouts",
    "make_predictor",
    "measure",
    "memory",
    "model_of",
    "node_of",
    "part_of",
    "presets",
    "read_rows",
    "render_page",
    "render_text",
    "repeated_kernels",
    "sampled",
    "to_json",
]
