"""Kernels whose programs decide by data, or wait for each other: executed program by program."""

from kernbench.replay.interleaved.launch import Executed, run_interleaved
from kernbench.replay.interleaved.memory import Resolve

__all__ = ["Executed", "Resolve", "run_interleaved"]
