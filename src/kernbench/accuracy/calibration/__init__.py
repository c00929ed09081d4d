"""Fit named constants of a machine to measured rows, and score it on held-out rows."""

from kernbench.accuracy.calibration.calibrate import Calibration, Fitted, calibrate
from kernbench.accuracy.calibration.constants import Constant, constants_of
from kernbench.accuracy.calibration.machine_text import edited
from kernbench.accuracy.calibration.transfer import transferred

__all__ = [
    "Calibration",
    "Constant",
    "Fitted",
    "calibrate",
    "constants_of",
    "edited",
    "transferred",
]
