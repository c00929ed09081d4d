"""Measured rows: files, devices, and who predicts them."""

from kernbench.accuracy.rows.devices import Machines, presets
from kernbench.accuracy.rows.forms import FORMS, Category, Form
from kernbench.accuracy.rows.parts import is_apart, part_of
from kernbench.accuracy.rows.predictor import Answer, Predictor, Ran, of_layers
from kernbench.accuracy.rows.reference import Row, read_rows, sampled
from kernbench.accuracy.rows.registry import OWN, Predictors
