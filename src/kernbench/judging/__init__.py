"""Judging kernels: right or wrong, how fast, and no way to cheat; workers import PyTorch."""

from kernbench.judging.judge import DEFAULT_MACHINES, Judge, judge
from kernbench.judging.limits import Limits
from kernbench.judging.verdict import (
    EXIT_CODES,
    SCHEMA,
    Failure,
    KernelTime,
    MachineTime,
    Outcome,
    SizeResult,
    Verdict,
    speed_line,
)

__all__ = [
    "DEFAULT_MACHINES",
    "EXIT_CODES",
    "SCHEMA",
    "Failure",
    "Judge",
    "KernelTime",
    "Limits",
    "MachineTime",
    "Outcome",
    "SizeResult",
    "Verdict",
    "judge",
    "speed_line",
]
