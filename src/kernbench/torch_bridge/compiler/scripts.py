"""TorchScript knows PyTorch's functions by their identity, also those that the bridge replaces."""

from __future__ import annotations

from typing import Any

import torch.jit._builtins
import torch.jit._recursive

from kernbench.torch_bridge.base.patches import Patches

_compile = torch.jit._recursive.try_compile_fn
_OPERATIONS: dict[int, str] = torch.jit._builtins._get_builtin_table()
"""Names of operations by the identities of functions; made before any of these is replaced."""


def install(patches: Patches) -> None:
    """Let scripts call what has been replaced so far: they run PyTorch's own functions."""
    own: dict[int, Any] = {}
    for replaced in patches.replaced:
        before, number = id(replaced.before), id(replaced.value)
        own[number] = own.get(before, replaced.before)
        if before in _OPERATIONS and number not in _OPERATIONS:
            _OPERATIONS[number] = _OPERATIONS[before]
            patches.on_close(_OPERATIONS.pop, number)

    def compile_own(function: Any, place: Any) -> Any:
        return _compile(own.get(id(function), function), place)

    patches.set(torch.jit._recursive, "try_compile_fn", compile_own)
