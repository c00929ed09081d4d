"""How far off the model is: measured rows, predictors, and the error table."""

from kernbench.validation.devices import Machines, presets
from kernbench.validation.gemm import DTYPES as GEMM_DTYPES
from kernbench.validation.gemm import GemmTuner, Timed
from kernbench.validation.harness import gemm_harness
from kernbench.validation.parts import part_of
from kernbench.validation.predictor import Answer, Predictor
from kernbench.validation.problem import Problem
from kernbench.validation.reference import Category, Row, category_of, read_rows, sampled
from kernbench.validation.registry import make_predictor
from kernbench.validation.repeated import repeated_kernels
from kernbench.validation.report import (
    dump_plot,
    format_of_plot,
    render_page,
    render_text,
    to_json,
)
from kernbench.validation.score import Errors, Scored, answer_rows, errors_of, measure

__all__ = [
    "GEMM_DTYPES",
    "Answer",
    "Category",
    "Errors",
    "GemmTuner",
    "Machines",
    "Predictor",
    "Problem",
    "Row",
    "Scored",
    "Timed",
    "answer_rows",
    "category_of",
    "dump_plot",
    "errors_of",
    "format_of_plot",
    "gemm_harness",
    "make_predictor",
    "measure",
    "part_of",
    "presets",
    "read_rows",
    "render_page",
    "render_text",
    "repeated_kernels",
    "sampled",
    "to_json",
]
