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
    "DPPolicy": "policy", "Machine": "hardware", "PlanResult": "api", "RunError": "api",
    "RunResult": "api", "RuntimeContext": "runtime_api", "SweepResult": "api",
    "Verdict": "judging", "WhyResult": "api", "judge": "judging", "load_machine": "hardware",
    "load_run": "api", "plan": "api", "retime": "api", "run": "api", "sweep": "api", "why": "api",
}  # fmt: skip

_PACKAGES = ("analysis", "errors", "hardware", "op_log", "ops", "page", "saved", "tp")
"""Packages for users, imported when they are asked for."""

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
    """Import one of the public names from the package that defines it."""
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"kernbench.{name}")
    if name not in _HOMES:
        raise AttributeError(
            f"module 'kernbench' has no attribute {name!r}; it has {', '.join(__dir__())}"
        )
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return what there is for users, imported or not."""
    return sorted({*__all__, *_HOMES, *_PACKAGES, "__version__"})
