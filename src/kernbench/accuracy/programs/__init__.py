"""Whole programs that others measured: what is run for one, where, and how long its step takes."""

from kernbench.accuracy.programs.program import LOOPS, Program, ProgramError, loop
from kernbench.accuracy.programs.runner import ProgramRunner
from kernbench.accuracy.programs.sources import SOURCES, Source, folder_of

__all__ = [
    "LOOPS",
    "SOURCES",
    "Program",
    "ProgramError",
    "ProgramRunner",
    "Source",
    "folder_of",
    "loop",
]
