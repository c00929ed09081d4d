"""Which operations of a run touched which bytes of a buffer, to detect unordered ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

import numpy as np

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
from kernbench.dtypes import Array
from kernbench.errors import DataRaceError
from kernbench.kernel_ir import touched
from kernbench.memory import Buffer
from kernbench.replay import PointerArg, atomic_name
from kernbench.sanitizer.facts.lanes import (
    Spans,
    access_spans,
    covers,
    first_common,
    flagged_spans,
    mark_written,
)
from kernbench.sanitizer.facts.launch import element
from kernbench.sanitizer.facts.order import Clock

_MANY = 64
"""Touches of one timeline on one buffer, above which it pays to look for superfluous ones."""


class TouchKind(Enum):
    """What an operation does to bytes; the value is the verb in errors."""

    READ = "reads"
    WRITE = "writes"
    ATOMIC = "updates"


@dataclass(frozen=True, slots=True, eq=False)
class TouchPart:
    """The bytes that one line of a kernel, or one call, touches."""

    name: str
    """``tt.load at x.py:3``, or ``all_reduce #1 on group world at x.py:7``."""
    low: int
    high: int
    """No byte outside is touched."""
    spans: Callable[[], Spans]
    """The exact bytes; asked for only where ranges overlap."""
    itemsize: int

    def moved(self, distance: int) -> TouchPart:
        """Return the part of a tensor that begins later in its buffer."""
        if not distance:
            return self
        spans = self.spans
        return TouchPart(
            self.name,
            self.low + distance,
            self.high + distance,
            lambda: spans() + distance,
            self.itemsize,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """All bytes of one buffer that one operation reads, or writes."""

    kind: TouchKind
    clock: Clock
    who: str
    """What errors say of the operation, in parentheses."""
    parts: tuple[TouchPart, ...]
    key: Any = None
    """Touches with equal keys are of one kind and have the same bytes; None equals nothing."""
    freed: str = ""
    """For memory that has since been freed, and may be another tensor's: where, and what to do."""
    owner: Any = None
    """Whose memory it was then, where its addresses have several owners one after another."""

    def moved(self, distance: int, freed: str, owner: Any = None) -> Touch:
        """Return the touch counted from another byte, of memory that was freed."""
        parts = tuple(part.moved(distance) for part in self.parts)
        key = None if owner is None or self.key is None else (owner, self.key)
        return Touch(self.kind, self.clock, self.who, parts, key, self.freed or freed, owner)

    @property
    def low(self) -> int:
        return min(part.low for part in self.parts)

    @property
    def high(self) -> int:
        return max(part.high for part in self.parts)

    def races_with(self, other: Touch) -> tuple[TouchPart, TouchPart, int] | None:
        """Return the parts that share a byte, and the byte, if one of the two writes."""
        if self.kind is other.kind and self.kind is not TouchKind.WRITE:
            return None
        for mine in self.parts:
            for its in other.parts:
                if mine.low < its.high and its.low < mine.high:
                    byte = first_common(mine.spans(), its.spans())
                    if byte is not None:
                        return mine, its, byte
        return None

    def makes_superfluous(self, older: Touch) -> bool:
        """Return whether every race with the older one is also a race with this one."""
        if self.kind is not TouchKind.WRITE and self.kind is not older.kind:
            return False
        return all(
            any(
                mine.low <= part.low
                and part.high <= mine.high
                and covers(mine.spans(), part.spans())
                for mine in self.parts
            )
            for part in older.parts
        )


class Touches:
    """What was done to one buffer so far."""

    def __init__(self) -> None:
        self._by_timeline: dict[int, dict[Any, Touch]] = {}
        """The touches of every timeline by their keys, oldest first."""
        self._limits: dict[int, int] = {}

    def __iter__(self) -> Iterator[Touch]:
        """Yield all touches, those of one timeline in order."""
        for touches in self._by_timeline.values():
            yield from touches.values()

    def keep(self, touch: Touch) -> None:
        """Record a touch of memory's earlier owner, without a look at others."""
        self._by_timeline.setdefault(touch.clock.timeline, {})[touch] = touch

    def add(self, touch: Touch, label: Buffer | str, start: int = 0) -> None:
        """Record a touch of a buffer, or of other memory with a name, which begins at ``start``.

        Everything that it follows must have been recorded before.

        Raises:
            DataRaceError: It is in no order with an earlier one, they share a byte, and one
                writes it.
        """
        clock = touch.clock
        for timeline, earlier in self._by_timeline.items():
            if timeline == clock.timeline:
                continue
            known = clock.known.get(timeline, -1)
            for other in reversed(earlier.values()):
                if other.clock.index <= known:
                    break
                races = touch.races_with(other)
                if races is not None:
                    mine, its, byte = races
                    raise _race(touch, other, label, mine, its, byte - start)
        line = self._by_timeline.setdefault(clock.timeline, {})
        key = touch if touch.key is None else touch.key
        line.pop(key, None)
        line[key] = touch
        if len(line) > self._limits.get(clock.timeline, _MANY):
            self._thin_out(clock.timeline)

    def _thin_out(self, timeline: int) -> None:
        """Drop touches of a long timeline that newer ones make superfluous."""
        newest_first = list(reversed(self._by_timeline[timeline].items()))
        lows = np.array([touch.low for _, touch in newest_first])
        highs = np.array([touch.high for _, touch in newest_first])
        kept: dict[Any, Touch] = {}
        for number, (key, older) in enumerate(newest_first):
            around = (lows[:number] <= older.low) & (highs[:number] >= older.high)
            newer = (newest_first[number][1] for number in np.flatnonzero(around))
            if not any(touch.makes_superfluous(older) for touch in newer):
                kept[key] = older
        self._by_timeline[timeline] = dict(reversed(kept.items()))
        self._limits[timeline] = max(_MANY, 2 * len(kept))


def record_touch(buffer: Buffer, touch: Touch) -> None:
    """Take note that an operation touches bytes of a buffer: the one way in for every access.

    Operations are recorded in an order that agrees with their clocks.

    Raises:
        DataRaceError: Another operation in no order with it has touched one of the bytes, and
            one of the two writes it.
    """
    if buffer.touches is None:
        buffer.touches = Touches()
    buffer.touches.add(touch, buffer)


def _race(
    touch: Touch, other: Touch, label: Buffer | str, mine: TouchPart, its: TouchPart, byte: int
) -> DataRaceError:
    place = element(label, byte - byte % mine.itemsize, mine.itemsize)
    freed = "" if other.owner is not None and other.owner is touch.owner else other.freed
    return DataRaceError(
        f"{mine.name} ({touch.who}) {touch.kind.value} {place}, which {its.name} ({other.who}) "
        f"{other.kind.value}; {freed or touch.clock.advice(other.clock)}"
    )


def kind_of(command: Transfer) -> TouchKind:
    """Return what a command does to memory, as far as other operations are concerned."""
    if isinstance(command, Atomic) or is_volatile(command):
        return TouchKind.ATOMIC
    return TouchKind.READ if isinstance(command, DmaRead) else TouchKind.WRITE


class TraceTouches:
    """The touches of one trace; counted from where each parameter points."""

    def __init__(self, trace: KernelTrace) -> None:
        self._parts: dict[tuple[int, TouchKind], tuple[TouchPart, ...]] = {}
        self._unknown: set[int] = set()
        """Parameters of which data says what is touched."""
        for group in trace.groups:
            for command in walk(group.body):
                if isinstance(command, DmaRead | DmaWrite | Atomic):
                    self._add(command)

    def _add(self, command: Transfer) -> None:
        access, mask = access_of(command), command.mask
        if access.param < 0 or not is_known(command):
            self._unknown.add(access.param)
            return
        assert isinstance(mask, Predicate)
        extent = touched(access, mask)
        if extent is None:
            return
        key = (access.param, kind_of(command))
        spans = cache(partial(access_spans, access.offset, mask, access.dtype.itemsize))
        part = TouchPart(name_of(command), *extent, spans, access.dtype.itemsize)
        self._parts[key] = (*self._parts.get(key, ()), part)

    def parts(self, param: int, *, writes: bool) -> list[TouchPart] | None:
        """Return all bytes that are touched of a parameter, or are written; None: data says."""
        if not self._unknown.isdisjoint((param, -1)):
            return None
        kinds = [kind for kind in TouchKind if kind is not TouchKind.READ or not writes]
        return [part for kind in kinds for part in self._parts.get((param, kind), ())]

    def record(self, pointers: Mapping[int, PointerArg], clock: Clock, who: str) -> None:
        """Take note of everything that a launch has touched where phase 1 knows it.

        Raises:
            DataRaceError: An operation that is in no order with it has touched the same bytes.
        """
        for (param, kind), parts in self._parts.items():
            buffer, offset = pointers[param]
            moved = tuple(part.moved(offset) for part in parts)
            key = (self, param, kind, offset)
            record_touch(buffer, Touch(kind, clock, who, moved, key))


class SeenTouches:
    """The bytes that accesses by data touch, collected while a launch runs."""

    def __init__(self) -> None:
        self._flags: dict[tuple[int, TouchKind, str, int], Array] = {}

    def add(self, command: Transfer, name: str, where: Array, buffer: Buffer) -> None:
        """Record lanes at bytes ``where`` of a buffer."""
        access = access_of(command)
        key = (access.param, kind_of(command), name, access.dtype.itemsize)
        flags = self._flags.get(key)
        if flags is None:
            flags = self._flags[key] = np.zeros(buffer.size_bytes, np.uint8)
        mark_written(flags, where, access.dtype.itemsize)

    def record(self, pointers: Mapping[int, PointerArg], clock: Clock, who: str) -> None:
        """Take note of everything that was collected.

        Raises:
            DataRaceError: As :meth:`TraceTouches.record`.
        """
        for param, kind, part in self._parts():
            record_touch(pointers[param].buffer, Touch(kind, clock, who, (part,)))

    def _parts(self) -> Iterator[tuple[int, TouchKind, TouchPart]]:
        """Yield parameter, kind and bytes of every access; the bytes are those of the buffer."""
        for (param, kind, name, size), flags in self._flags.items():
            spans = flagged_spans(flags != 0)
            if len(spans):
                low, high = int(spans[0, 0]), int(spans[-1, 1])
                yield param, kind, TouchPart(name, low, high, partial(_same, spans), size)


def _same(spans: Array) -> Array:
    return spans


def is_blind(command: Transfer) -> bool:
    """Return whether an atomic only writes: its old value is neither read nor computed with."""
    return isinstance(command, Atomic) and command.kind == "exch" and command.dst is None


def is_volatile(command: Transfer) -> bool:
    """Return whether it is a volatile load, which may observe what others write."""
    return isinstance(command, DmaRead) and command.volatile


def is_known(command: Transfer) -> bool:
    """Return whether phase 1 knows which bytes a command touches."""
    return access_of(command).gather is None and isinstance(command.mask, Predicate)


def name_of(command: Transfer) -> str:
    """Return the name of an access in errors."""
    if isinstance(command, Atomic):
        scope = ' (scope="cta")' if command.scope == "cta" else ""
        return f"tt.{atomic_name(command)}{scope} at {command.line}"
    return f"tt.{'load' if isinstance(command, DmaRead) else 'store'} at {command.line}"
