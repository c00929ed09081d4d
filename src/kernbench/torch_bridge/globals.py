"""State that a real process has once, exchanged when another simulated process goes on."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed.tensor._random as dtensor_random
from torch.distributed.tensor import DTensor

from kernbench.torch_bridge.process import Process


@dataclass(frozen=True, slots=True)
class Global:
    """One such piece of state."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    copy: Callable[[Any], Any] = lambda value: value
    """Makes a new process's own value from its parent's."""


def _put_dtype(value: torch.dtype) -> None:
    if torch.get_default_dtype() is not value:
        torch.set_default_dtype(value)


def _copy_bit_generator(generator: Any) -> Any:
    made = type(generator)(0)
    made.state = generator.state
    return made


def _attribute(name: str, owner: Any, copy: Callable[[Any], Any] | None = None) -> Global:
    def get() -> Any:
        return getattr(owner, name)

    def put(value: Any) -> None:
        setattr(owner, name, value)

    key = f"{owner!r}.{name}"
    return Global(key, get, put) if copy is None else Global(key, get, put, copy)


def _module(name: str) -> Global:
    def put(value: Any) -> None:
        if value is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = value

    return Global(f"module {name}", lambda: sys.modules.get(name), put)


def known_globals() -> tuple[Global, ...]:
    """Return everything that is exchanged."""
    dispatcher: Any = DTensor._op_dispatcher
    numpy_random: Any = np.random
    return (
        Global(
            "torch random numbers",
            torch.default_generator.get_state,
            torch.default_generator.set_state,
        ),
        Global("Python random numbers", random.getstate, random.setstate),
        # An object per process; its state itself would take 70 us to copy.
        Global(
            "numpy random numbers",
            numpy_random.get_bit_generator,
            numpy_random.set_bit_generator,
            _copy_bit_generator,
        ),
        Global("default dtype", torch.get_default_dtype, _put_dtype),
        _module("__main__"),
        _module("__mp_main__"),
        _attribute("argv", sys, list),
        _attribute("excepthook", sys),
        _attribute("_rng_tracker", dtensor_random),
        # loss_parallel() edits the table.
        _attribute("_custom_op_handlers", dispatcher, dict),
    )


class Globals:
    """Whose values the real process shows now."""

    def __init__(self, base: Process) -> None:
        self._known = known_globals()
        self._loaded = base

    def start(self, process: Process) -> None:
        """Give a new process the values that show now."""
        process.saved = {each.name: each.copy(each.get()) for each in self._known}

    def load(self, process: Process) -> None:
        """Show a process's values."""
        before = self._loaded
        if before is process:
            return
        saved, wanted = before.saved, process.saved
        for each in self._known:
            saved[each.name] = each.get()
            each.put(wanted[each.name])
        self._loaded = process
