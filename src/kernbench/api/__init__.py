"""Commands as functions with typed results: run, why, retime, sweep, plan."""

from kernbench.api.plans import PlanResult, plan
from kernbench.api.results import Printed
from kernbench.api.runs import RunError, RunResult, WhyResult, retime, run, why
from kernbench.api.sweeps import SweepPoint, SweepResult, sweep

__all__ = [
    "PlanResult",
    "Printed",
    "RunError",
    "RunResult",
    "SweepPoint",
    "SweepResult",
    "WhyResult",
    "plan",
    "retime",
    "run",
    "sweep",
    "why",
]
