"""How accurate the model is: measured rows, predictors, and the error table."""

from kernbench.accuracy.validation.predictors.gemm import DTYPES as GEMM_DTYPES
from kernbench.accuracy.validation.predictors.gemm import GemmTuner, Timed
from kernbench.accuracy.validation.predictors.library_rows import LibraryPredictor, MeasuredKernels
from kernbench.accuracy.validation.predictors.passes import (
    Model,
    ModelRuns,
    Pass,
    Passes,
    PassTime,
)
from kernbench.accuracy.validation.predictors.pipelines import (
    forward_us,
    one_forward_one_backward_us,
)
from kernbench.accuracy.validation.predictors.stacks import Stack
from kernbench.accuracy.validation.predictors.steps import Microbatch, Steps, StepTime
from kernbench.accuracy.validation.predictors.wires import (
    StageWires,
    collective_cost,
    single_sips,
)
from kernbench.accuracy.validation.rows.devices import Machines, presets
from kernbench.accuracy.validation.rows.forms import Category
from kernbench.accuracy.validation.rows.harness import gemm_harness
from kernbench.accuracy.validation.rows.parts import is_apart, part_of
from kernbench.accuracy.validation.rows.predictor import Answer, Predictor
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
    "Answer",
    "Category",
    "Errors",
    "GemmTuner",
    "LibraryPredictor",
    "Machines",
    "MeasuredKernels",
    "Microbatch",
    "Model",
    "ModelRuns",
    "Pass",
    "PassTime",
    "Passes",
    "Predictor",
    "Problem",
    "Row",
    "Scored",
    "Stack",
    "StageWires",
    "StepTime",
    "Steps",
    "Timed",
    "answer_rows",
    "category_of",
    "collective_cost",
    "dump_plot",
    "errors_by_machine",
    "errors_of",
    "format_of_plot",
    "forward_us",
    "gemm_harness",
    "is_apart",
    "make_predictor",
    "measure",
    "one_forward_one_backward_us",
    "part_of",
    "presets",
    "read_rows",
    "render_page",
    "render_text",
    "repeated_kernels",
    "sampled",
    "single_sips",
    "to_json",
]
