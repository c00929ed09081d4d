"""Commands as functions with typed results: run, why, retime, sweep, plan."""

from kernbench.api.plans import PlanResult, plan
from kernbench.api.results import Printed
from kernbench.api.runs import RunError, RunResult, WhyResult, load_run, retime, run, why
from kernbench.api.sweeps import SweepPoint, SweepResult, sweep

__all__ = [
    "PlanResult",
    "Printed",
    "RunError",
    "RunResult",
    "SweepPoint",
    "SweepResult",
    "WhyResult",
    "load_run",
    "plan",
    "retime",
    "run",
    "sweep",
    "why",
]
