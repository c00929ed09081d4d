"""Serving under load: requests that come, what an engine makes of them, and how long each waits."""

from kernbench.serving.driving import drive
from kernbench.serving.engine import Engine, EngineSettings, Output, State, engine_of
from kernbench.serving.figures import Objective, figures, objectives_of
from kernbench.serving.loads import Lengths, Load, Request
from kernbench.serving.recording import RequestRow, StepRow, Taken
from kernbench.serving.settings import PROGRAM, ServeSettings, parse_settings
from kernbench.serving.traces import read_trace

__all__ = [
    "PROGRAM",
    "Engine",
    "EngineSettings",
    "Lengths",
    "Load",
    "Objective",
    "Output",
    "Request",
    "RequestRow",
    "ServeSettings",
    "State",
    "StepRow",
    "Taken",
    "drive",
    "engine_of",
    "figures",
    "objectives_of",
    "parse_settings",
    "read_trace",
]
