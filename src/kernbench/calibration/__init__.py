"""Fit the named constants of a machine to measured rows, and score it on rows kept apart."""

from kernbench.calibration.calibrate import Calibration, Fitted, calibrate
from kernbench.calibration.constants import Constant, constants_of
from kernbench.calibration.machine_text import edited
from kernbench.calibration.transfer import transferred

__all__ = [
    "Calibration",
    "Constant",
    "Fitted",
    "calibrate",
    "constants_of",
    "edited",
    "transferred",
]
