"""When backward passes begin and end, for what notes the memory of a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.processes.python_calls import FRAMES_OF_FUNCTION, IN_THREAD


def install(patches: Patches) -> None:
    """Let the memory of a process know of each call of the autograd engine."""
    engine = torch.autograd._engine_run_backward
    patches.set(torch.autograd, "_engine_run_backward", _noted(engine))


def _noted(engine: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(engine)
    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        memory = None if HERE.process is None else HERE.process.memory_use
        if memory is None:
            return engine(outputs, *args, **kwargs)
        _uncounted(FRAMES_OF_FUNCTION + 1, memory.backward_begins, outputs)
        try:
            return engine(outputs, *args, **kwargs)
        finally:
            # This function itself was left out before.
            _uncounted(FRAMES_OF_FUNCTION, memory.backward_ended)

    return run


def _uncounted(num_own: int, note: Callable[..., None], *args: Any) -> None:
    calls = IN_THREAD.calls
    if calls is None or not calls.is_on:
        note(*args)
        return
    calls.pause(num_own)
    try:
        note(*args)
    finally:
        calls.resume()
