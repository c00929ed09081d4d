"""Fit named constants of a machine to measured rows, and score it on held-out rows."""

from kernbench.accuracy.calibration.calibrate import Calibration, FittedConstant, calibrate
from kernbench.accuracy.calibration.constants import constants_of, number_at
from kernbench.accuracy.calibration.least_squares import Array, solve
