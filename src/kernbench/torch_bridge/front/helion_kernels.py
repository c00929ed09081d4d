"""Helion, whose kernels become Triton's: what it compiles takes no simulated time (ADR-0126 D2)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import uncounted

MODULE = "helion.runtime.kernel"
_COMPILING = ("__init__", "compile_config")
"""Methods of a kernel for some arguments: to trace its function, and to write Triton for it."""


def patch(module: ModuleType, patches: Patches) -> None:
    """Leave the calls of its compiler out of the host's time."""
    bound: Any = module.__dict__["BoundKernel"]
    for name in _COMPILING:
        patches.set(bound, name, _uncounted(getattr(bound, name)))


def _uncounted(compile: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile)
    def call(*args: Any, **kwargs: Any) -> Any:
        with uncounted():
            return compile(*args, **kwargs)

    return call
