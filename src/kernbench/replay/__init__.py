"""Phase 2: executing commands on the bytes of buffers, with numpy."""

from kernbench.replay.collective import run_collective
from kernbench.replay.frame import PointerArg
from kernbench.replay.run import run_kernel

__all__ = ["PointerArg", "run_collective", "run_kernel"]
