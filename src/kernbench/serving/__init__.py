"""Serving under load: requests that come, what an engine makes of them, and how long each waits."""

from kernbench.serving.driving import drive
from kernbench.serving.engine import EngineSettings, Output, ServingEngine, State, engine_of
from kernbench.serving.figures import Objective, figures, objectives_of
from kernbench.serving.loads import ServedRequest, ServingLoad, TokenLengths
from kernbench.serving.models import check_fits
from kernbench.serving.recording import RequestRow, StepRow, Taken
from kernbench.serving.settings import DEFAULTS, PROGRAM, ServeSettings, parse_settings
from kernbench.serving.traces import read_trace

__all__ = [
    "DEFAULTS",
    "PROGRAM",
    "EngineSettings",
    "Objective",
    "Output",
    "RequestRow",
    "ServeSettings",
    "ServedRequest",
    "ServingEngine",
    "ServingLoad",
    "State",
    "StepRow",
    "Taken",
    "TokenLengths",
    "check_fits",
    "drive",
    "engine_of",
    "figures",
    "objectives_of",
    "parse_settings",
    "read_trace",
]
