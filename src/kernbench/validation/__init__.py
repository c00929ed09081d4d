"""How far off the model is: measured rows, predictors, and the error table."""

from kernbench.validation.devices import Machines, presets
from kernbench.validation.predictor import Answer, Predictor
from kernbench.validation.reference import Category, Row, category_of, read_rows, sampled
from kernbench.validation.report import render_page, render_text, to_json, write_plot
from kernbench.validation.score import Errors, Scored, answer_rows, errors_of, measure

__all__ = [
    "Answer",
    "Category",
    "Errors",
    "Machines",
    "Predictor",
    "Row",
    "Scored",
    "answer_rows",
    "category_of",
    "errors_of",
    "measure",
    "presets",
    "read_rows",
    "render_page",
    "render_text",
    "sampled",
    "to_json",
    "write_plot",
]
