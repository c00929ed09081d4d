"""Phase 2: executing commands on the bytes of buffers, with numpy."""

from kernbench.replay.collective import run_collective
from kernbench.replay.frame import PointerArg
from kernbench.replay.interleaved import Executed, Resolve, run_interleaved
from kernbench.replay.run import run_kernel
from kernbench.replay.sanitizer import (
    NOTHING,
    Clock,
    Kind,
    Known,
    Launched,
    Part,
    Sanitizer,
    Touch,
    as_sanitizer,
    joined,
    merged,
    record_touch,
    strided_spans,
)

__all__ = [
    "NOTHING",
    "Clock",
    "Executed",
    "Kind",
    "Known",
    "Launched",
    "Part",
    "PointerArg",
    "Resolve",
    "Sanitizer",
    "Touch",
    "as_sanitizer",
    "joined",
    "merged",
    "record_touch",
    "run_collective",
    "run_interleaved",
    "run_kernel",
    "strided_spans",
]
