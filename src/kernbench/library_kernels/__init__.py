"""Kernels of vendor libraries: what each does on tiles, and how long it takes."""

from kernbench.library_kernels.attention import AttentionProblem, FlashKernel, flash_forward
from kernbench.library_kernels.engine import KernelTime, makespan, time_kernel
from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip

__all__ = [
    "AttentionProblem",
    "FlashKernel",
    "KernelTime",
    "LibraryKernel",
    "Tiles",
    "Trip",
    "flash_forward",
    "makespan",
    "time_kernel",
]
