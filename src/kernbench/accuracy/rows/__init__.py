"""Measured rows: files, devices, and who predicts them."""

from kernbench.accuracy.rows.devices import Machines, presets
from kernbench.accuracy.rows.forms import FORMS, Category, Form
from kernbench.accuracy.rows.predictor import (
    OWN,
    Answer,
    Predictor,
    Predictors,
    Ran,
    is_apart,
    of_layers,
    part_of,
)
from kernbench.accuracy.rows.reference import Row, read_rows, sampled
