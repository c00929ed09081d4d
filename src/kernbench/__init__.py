"""Run Triton kernels and tensor-parallel programs on accelerators that you do not have.

The runtime is imported when it is first asked for: the command line answers ``--help`` without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.errors import KernbenchError

if TYPE_CHECKING:
    from kernbench.api import (
        PlanResult,
        RunError,
        RunResult,
        SweepResult,
        WhyResult,
        load_run,
        plan,
        retime,
        run,
        sweep,
        why,
    )
    from kernbench.hardware import Machine, load_machine
    from kernbench.judging import Verdict, judge
    from kernbench.policy import DPPolicy
    from kernbench.runtime_api import RuntimeContext

__version__ = "0.1.0"

_HOMES = {
    "analysis": "", "errors": "", "hardware": "", "op_log": "", "ops": "", "page": "", "saved": "",
    "tp": "",
    "DPPolicy": "policy", "Machine": "hardware", "PlanResult": "api", "RunError": "api",
    "RunResult": "api", "RuntimeContext": "runtime_api", "SweepResult": "api",
    "Verdict": "judging", "WhyResult": "api", "judge": "judging", "load_machine": "hardware",
    "load_run": "api", "plan": "api", "retime": "api", "run": "api", "sweep": "api", "why": "api",
}  # fmt: skip

__all__ = [
    "DPPolicy",
    "KernbenchError",
    "Machine",
    "PlanResult",
    "RunError",
    "RunResult",
    "RuntimeContext",
    "SweepResult",
    "Verdict",
    "WhyResult",
    "judge",
    "load_machine",
    "load_run",
    "plan",
    "retime",
    "run",
    "sweep",
    "why",
]


def __getattr__(name: str) -> Any:
    """Import one of the public names from the package that defines it, or a package for users."""
    from kernbench.on_demand import asked_for

    return asked_for(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Return what there is for users, imported or not."""
    return sorted({*__all__, *_HOMES, "__version__"})
