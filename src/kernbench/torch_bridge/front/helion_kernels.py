"""Helion, whose kernels become Triton's: compiling and tuning them (ADR-0126 D2, ADR-0097).

What it compiles takes no simulated time, and its autotuner measures in modeled time: once, off the
timeline, as ``triton.testing.do_bench`` does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import uncounted
from kernbench.torch_bridge.processes.process import current

_TRACING = ("__init__", "compile_config")
"""Methods of a kernel for some arguments: to trace its function, and to write Triton for it."""
_SEARCHING = "autotune"
"""The autotuning method of a kernel: it searches for the configuration to write Triton with."""

VARIABLES: Mapping[str, str] = MappingProxyType(
    {"HELION_AUTOTUNE_PRECOMPILE": "0", "HELION_AUTOTUNE_BENCHMARK_SUBPROCESS": "0"}
)
"""What programs find where they set nothing: processes of their own, which Helion starts because a
GPU may hang or a compiler run for ever, would be ranks without this one's tensors."""


def _leave_out_compiler(module: ModuleType, patches: Patches) -> None:
    """Leave the calls of its compiler out of the host's time."""
    bound: Any = module.__dict__["BoundKernel"]
    for name in _TRACING:
        patches.set(bound, name, _traced(getattr(bound, name)))
    patches.set(bound, _SEARCHING, _uncounted(getattr(bound, _SEARCHING)))


def _measure_in_modeled_time(module: ModuleType, patches: Patches) -> None:
    """Let its autotuner ask for modeled times; a version without a function has it otherwise."""
    ours: dict[str, Callable[..., Any]] = {
        "do_bench": _bench,
        "interleaved_bench": lambda fns, **options: [float(_bench(fn)) for fn in fns],
        "compute_repeat": lambda fn, **options: 1,
    }
    patches.set_all(
        module, {name: function for name, function in ours.items() if hasattr(module, name)}
    )


PATCHES: Mapping[str, Callable[[ModuleType, Patches], None]] = MappingProxyType(
    {
        "helion.runtime.kernel": _leave_out_compiler,
        "helion.autotuner.benchmarking": _measure_in_modeled_time,
    }
)
"""What is done when a program has imported a module, by its name."""


def _bench(
    fn: Callable[[], Any],
    warmup: int = 25,
    rep: int = 100,
    grad_to_none: Any = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **options: Any,
) -> Any:
    """``do_bench`` of Helion, which adds options for where time varies."""
    from kernbench.triton_backend import do_bench

    targets = None if grad_to_none is None else [grad_to_none]
    number = do_bench(fn, warmup, rep, targets, quantiles, return_mode)
    # A configuration that launches nothing must not win.
    return math.inf if isinstance(number, float) and math.isnan(number) else number


def _traced(trace: Callable[..., Any]) -> Callable[..., Any]:
    """Return what traces with fake tensors, which the bridge's functions would put on the host."""

    @functools.wraps(trace)
    def call(*args: Any, **kwargs: Any) -> Any:
        with current().session.tracing():
            return trace(*args, **kwargs)

    return call


def _uncounted(compile: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile)
    def call(*args: Any, **kwargs: Any) -> Any:
        with uncounted():
            return compile(*args, **kwargs)

    return call
