"""Phase 2: executing commands on the bytes of buffers, with numpy."""

from kernbench.replay.collective import run_collective
from kernbench.replay.frame import PointerArg
from kernbench.replay.interleaved import (
    Decisions,
    Executed,
    InterleavedLaunch,
    Resolve,
    Span,
    Strand,
    Watched,
    capture,
    look,
    of_programs,
    pace_interleaved,
    parts_of,
    run_interleaved,
    spans_of,
)
from kernbench.replay.run import run_kernel
from kernbench.replay.sanitizer import Launched, Sanitizer, as_sanitizer

__all__ = [
    "Decisions",
    "Executed",
    "InterleavedLaunch",
    "Launched",
    "PointerArg",
    "Resolve",
    "Sanitizer",
    "Span",
    "Strand",
    "Watched",
    "as_sanitizer",
    "capture",
    "look",
    "of_programs",
    "pace_interleaved",
    "parts_of",
    "run_collective",
    "run_interleaved",
    "run_kernel",
    "spans_of",
]
