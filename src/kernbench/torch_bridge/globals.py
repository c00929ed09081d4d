"""State that a real process has once, exchanged when another simulated process goes on."""

from __future__ import annotations

import ctypes
import random
import struct
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


class PythonRandom:
    """The state of the hidden generator of ``random``.

    ``getstate`` makes 625 numbers of it, and takes longer than all else that is exchanged when
    ranks take turns. Where CPython has the state as words behind the object's head, those are
    copied as they are.
    """

    def __init__(self) -> None:
        self._generator: Any = random._inst
        head = object.__basicsize__
        size = random.Random.__base__.__basicsize__ - head  # type: ignore[union-attr]
        self._words = (ctypes.c_char * size).from_address(id(self._generator) + head)
        self.is_copied = self._shows(random.getstate()[1])

    def _shows(self, state: tuple[int, ...]) -> bool:
        """Return whether the words are those that the generator says it has."""
        *words, position = state
        layout = struct.Struct(f"@i{len(words)}I")
        raw = self._words.raw
        return layout.size <= len(raw) and layout.unpack_from(raw) == (position, *words)

    def get(self) -> Any:
        """Return the state."""
        if self.is_copied:
            return self._words.raw, self._generator.gauss_next
        return random.getstate()

    def put(self, state: Any) -> None:
        """Go on from a state."""
        if self.is_copied:
            self._words.raw, self._generator.gauss_next = state
        else:
            random.setstate(state)


class _Shown:
    """Things that Python and DTensor keep in one place for all: modules, and attributes."""

    def __init__(self) -> None:
        # loss_parallel() edits its table.
        self._dispatcher: Any = DTensor._op_dispatcher

    def get(self) -> tuple[Any, ...]:
        modules = sys.modules
        return (
            sys.argv,
            sys.excepthook,
            modules.get("__main__"),
            modules.get("__mp_main__"),
            dtensor_random._rng_tracker,
            self._dispatcher._custom_op_handlers,
        )

    def put(self, shown: tuple[Any, ...]) -> None:
        sys.argv, sys.excepthook, main, mp_main, tracker, handlers = shown
        for name, module in (("__main__", main), ("__mp_main__", mp_main)):
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        dtensor_random._rng_tracker = tracker
        self._dispatcher._custom_op_handlers = handlers

    def copy(self, shown: tuple[Any, ...]) -> tuple[Any, ...]:
        argv, *rest, handlers = shown
        return (list(argv), *rest, dict(handlers))


def known_globals() -> tuple[Global, ...]:
    """Return everything that is exchanged."""
    numpy_random: Any = np.random
    python_random, shown = PythonRandom(), _Shown()
    return (
        Global(
            "torch random numbers",
            torch.default_generator.get_state,
            torch.default_generator.set_state,
        ),
        Global("Python random numbers", python_random.get, python_random.put),
        # An object per process; its state itself would take 70 us to copy.
        Global(
            "numpy random numbers",
            numpy_random.get_bit_generator,
            numpy_random.set_bit_generator,
            _copy_bit_generator,
        ),
        Global("default dtype", torch.get_default_dtype, _put_dtype),
        Global("modules and attributes", shown.get, shown.put, shown.copy),
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
