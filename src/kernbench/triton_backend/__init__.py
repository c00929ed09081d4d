"""kernbench as a Triton backend: TTIR in, launches out, active only while a run asks for it.

Triton imports ``compiler`` and ``driver`` of this package on *every* ``import triton`` in the
environment, also in programs that never use kernbench. So those two import Triton's base classes
and nothing else, and the rest of the package is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Before the submodules: whoever imports one of them first would otherwise start ``import triton``
# from inside it, and Triton's discovery would meet a half-made module without its class.
import triton

if TYPE_CHECKING:
    from kernbench.triton_backend.activation import activate, announced_target, check_announced
    from kernbench.triton_backend.benchmarking import do_bench
    from kernbench.triton_backend.binary import KernelBinary, TcmExhaustedError, build_binary
    from kernbench.triton_backend.compiler import compile_target, products_library
    from kernbench.triton_backend.launch_errors import around_launches
    from kernbench.triton_backend.launcher import (
        MAX_PROGRAMS,
        CompiledLauncher,
        DeviceRates,
        Launcher,
        active_launcher,
        check_grid,
    )
    from kernbench.triton_backend.sound_cache import cache_remarks


_HOME = {
    "CompiledLauncher": "launcher",
    "DeviceRates": "launcher",
    "MAX_PROGRAMS": "launcher",
    "active_launcher": "launcher",
    "check_grid": "launcher",
    "KernelBinary": "binary",
    "Launcher": "launcher",
    "TcmExhaustedError": "binary",
    "activate": "activation",
    "announced_target": "activation",
    "around_launches": "launch_errors",
    "build_binary": "binary",
    "cache_remarks": "sound_cache",
    "check_announced": "activation",
    "compile_target": "compiler",
    "do_bench": "benchmarking",
    "products_library": "compiler",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
