"""Phase 2: executing commands on the bytes of buffers, with numpy."""

from kernbench.replay.collective import run_collective
from kernbench.replay.frame import PointerArg
from kernbench.replay.interleaved import Executed, Resolve, run_interleaved
from kernbench.replay.run import run_kernel
from kernbench.replay.sanitizer import (
    Clock,
    Kind,
    Launched,
    Part,
    Sanitizer,
    Touch,
    as_sanitizer,
    record_touch,
    strided_spans,
)

__all__ = [
    "Clock",
    "Executed",
    "Kind",
    "Launched",
    "Part",
    "PointerArg",
    "Resolve",
    "Sanitizer",
    "Touch",
    "as_sanitizer",
    "record_touch",
    "run_collective",
    "run_interleaved",
    "run_kernel",
    "strided_spans",
]
