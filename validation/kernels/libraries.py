"""The kernels of an architecture: those that programs launch, and those that rows alone name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kernbench import hardware
from kernbench.hardware import KernelLibrary, read_families

FOLDER = Path(__file__).parent / "kernel_libraries"


@cache
def load_library(architecture: str) -> KernelLibrary:
    """Return the kernels of an architecture.

    Raises:
        UnknownNameError: There is no folder of that architecture.
        MachineError: A file has a key that is unknown, an impossible value, or a kernel of another
            file.
    """
    shipped = hardware.load_library(architecture)
    folder = FOLDER / architecture
    if not folder.is_dir():
        return shipped
    return KernelLibrary(architecture, read_families(folder, shipped.families))
