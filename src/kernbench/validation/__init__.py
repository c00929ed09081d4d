"""How far off the model is: measured rows, predictors, and the error table."""

from kernbench.validation.predictor import Answer, Baseline, Predictor
from kernbench.validation.reference import Category, Row, category_of, read_rows

__all__ = ["Answer", "Baseline", "Category", "Predictor", "Row", "category_of", "read_rows"]
