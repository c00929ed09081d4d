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
    of_programs,
    pace_interleaved,
    parts_of,
    run_interleaved,
    spans_of,
)
from kernbench.replay.outside import OutsideReads
from kernbench.replay.run import run_kernel
from kernbench.replay.sanitizer import (
    Clock,
    Kind,
    Launched,
    LiveWatch,
    Part,
    Sanitizer,
    Touch,
    build_sanitizer,
    record_touch,
    strided_spans,
)

__all__ = [
    "Clock",
    "Decisions",
    "Executed",
    "InterleavedLaunch",
    "Kind",
    "Launched",
    "LiveWatch",
    "OutsideReads",
    "Part",
    "PointerArg",
    "Resolve",
    "Sanitizer",
    "Span",
    "Strand",
    "Touch",
    "Watched",
    "build_sanitizer",
    "capture",
    "of_programs",
    "pace_interleaved",
    "parts_of",
    "record_touch",
    "run_collective",
    "run_interleaved",
    "run_kernel",
    "spans_of",
    "strided_spans",
]
