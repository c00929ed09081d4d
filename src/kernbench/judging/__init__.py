"""Judging kernels: right or wrong, how fast, and no way to cheat; workers import PyTorch."""

from kernbench.judging.judge import DEFAULT_MACHINES, BusyError, Judge, JudgePool, judge
from kernbench.judging.limits import CandidateLimits
from kernbench.judging.verdict import (
    EXIT_CODES,
    SCHEMA,
    Failure,
    Gain,
    KernelResources,
    MachineTime,
    Outcome,
    SizeResult,
    TimedKernel,
    TimedLine,
    Verdict,
    beside_markdown,
    speed_line,
)

__all__ = [
    "DEFAULT_MACHINES",
    "EXIT_CODES",
    "SCHEMA",
    "BusyError",
    "CandidateLimits",
    "Failure",
    "Gain",
    "Judge",
    "JudgePool",
    "KernelResources",
    "MachineTime",
    "Outcome",
    "SizeResult",
    "TimedKernel",
    "TimedLine",
    "Verdict",
    "beside_markdown",
    "judge",
    "speed_line",
]
