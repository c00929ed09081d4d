"""Phase 2: executing commands on the bytes of buffers, with numpy."""

from kernbench.replay.collective import run_collective
from kernbench.replay.frame import PointerArg
from kernbench.replay.interleaved import Executed, Resolve, run_interleaved
from kernbench.replay.run import run_kernel
from kernbench.replay.sanitizer import Launched, Sanitizer, as_sanitizer

__all__ = [
    "Executed",
    "Launched",
    "PointerArg",
    "Resolve",
    "Sanitizer",
    "as_sanitizer",
    "run_collective",
    "run_interleaved",
    "run_kernel",
]
