"""What a launch touches, line by line: known to phase 1 once per trace, or found as it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    Atomic,
    DmaRead,
    DmaWrite,
    KernelTrace,
    Predicate,
    Transfer,
    access_of,
    walk,
)
from kernbench.kernel_ir import touched
from kernbench.memory import Buffer
from kernbench.replay import PointerArg, atomic_name
from kernbench.sanitizer.facts.lanes import mark_written
from kernbench.sanitizer.facts.order import Clock
from kernbench.sanitizer.facts.spans import access_spans, flagged_spans
from kernbench.sanitizer.ordering.touches import Touch, TouchKind, TouchPart, record_touch

Array = npt.NDArray[Any]


def kind_of(command: Transfer) -> TouchKind:
    """Return what a command does to memory, as far as other operations are concerned."""
    if isinstance(command, Atomic) or is_volatile(command):
        return TouchKind.ATOMIC
    return TouchKind.READ if isinstance(command, DmaRead) else TouchKind.WRITE


class TraceTouches:
    """The touches of one trace; counted from where each parameter points."""

    def __init__(self, trace: KernelTrace) -> None:
        self._parts: dict[tuple[int, TouchKind], tuple[TouchPart, ...]] = {}
        for group in trace.groups:
            for command in walk(group.body):
                if isinstance(command, DmaRead | DmaWrite | Atomic):
                    self._add(command)

    def _add(self, command: Transfer) -> None:
        access, mask = access_of(command), command.mask
        if access.param < 0 or not is_known(command):
            return
        assert isinstance(mask, Predicate)
        extent = touched(access, mask)
        if extent is None:
            return
        key = (access.param, kind_of(command))
        spans = cache(partial(access_spans, access.offset, mask, access.dtype.itemsize))
        part = TouchPart(name_of(command), *extent, spans, access.dtype.itemsize)
        self._parts[key] = (*self._parts.get(key, ()), part)

    def record(
        self, pointers: Mapping[int, PointerArg], seen: SeenTouches, clock: Clock, who: str
    ) -> None:
        """Take note of everything that a launch has touched.

        Raises:
            DataRaceError: An operation that is in no order with it has touched the same bytes.
        """
        for (param, kind), parts in self._parts.items():
            buffer, offset = pointers[param]
            moved = tuple(part.moved(offset) for part in parts)
            key = (self, param, kind, offset)
            record_touch(buffer, Touch(kind, clock, who, moved, key))
        for param, kind, part in seen.parts():
            record_touch(pointers[param].buffer, Touch(kind, clock, who, (part,)))


class SeenTouches:
    """The bytes that accesses by data touch, collected while a launch runs."""

    def __init__(self) -> None:
        self._flags: dict[tuple[int, TouchKind, str, int], Array] = {}

    def add(self, command: Transfer, where: Array, buffer: Buffer) -> None:
        """Take note of lanes at bytes ``where`` of a buffer."""
        access = access_of(command)
        key = (access.param, kind_of(command), name_of(command), access.dtype.itemsize)
        flags = self._flags.get(key)
        if flags is None:
            flags = self._flags[key] = np.zeros(buffer.size_bytes, np.uint8)
        mark_written(flags, where, access.dtype.itemsize)

    def parts(self) -> Iterator[tuple[int, TouchKind, TouchPart]]:
        """Yield parameter, kind and bytes of every access; the bytes are those of the buffer."""
        for (param, kind, name, size), flags in self._flags.items():
            spans = flagged_spans(flags != 0)
            if len(spans):
                low, high = int(spans[0, 0]), int(spans[-1, 1])
                yield param, kind, TouchPart(name, low, high, partial(_same, spans), size)


def _same(spans: Array) -> Array:
    return spans


def is_blind(command: Transfer) -> bool:
    """Return whether an atomic only writes: nobody reads what it found, or computes with it."""
    return isinstance(command, Atomic) and command.kind == "exch" and command.dst is None


def is_volatile(command: Transfer) -> bool:
    """Return whether it is a load that looks for what others write, as an atomic one does."""
    return isinstance(command, DmaRead) and command.volatile


def is_known(command: Transfer) -> bool:
    """Return whether phase 1 knows which bytes a command touches."""
    return access_of(command).gather is None and isinstance(command.mask, Predicate)


def name_of(command: Transfer) -> str:
    """Return how errors name an access."""
    if isinstance(command, Atomic):
        return f"tt.{atomic_name(command)} at {command.line}"
    return f"tt.{'load' if isinstance(command, DmaRead) else 'store'} at {command.line}"
