"""What a run has allocated on its devices: each allocation, from when to when, and what for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, count
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

NEVER = -1
"""The end of an allocation that was not freed."""


class Phase(StrEnum):
    """What memory is for; where several are true, the first one of these counts."""

    WEIGHTS = "weights"
    BUFFERS = "buffers"
    """Buffers of modules: part of the model, but no parameters."""
    OPTIMIZER_STATE = "optimizer state"
    GRADIENTS = "gradients"
    """Gradients of parameters."""
    ACTIVATIONS = "activations"
    """What is kept for the backward pass."""
    KV_CACHE = "KV cache"
    COMMUNICATION = "communication"
    """What collectives read or write, and nothing above is."""
    TEMPORARIES = "temporaries"
    """What was freed before the pass that allocated it had ended."""
    OTHER = "other"
    """What is not known to be anything else."""


_RANKS = {phase: number for number, phase in enumerate(Phase)}


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory of a device from when it was allocated until it was freed."""

    rank: int
    sip_id: int
    size_bytes: int
    """What the allocator gave, rounded up."""
    asked_bytes: int
    begin: int
    """The number of the event; those of a run's allocations and frees are in order."""
    begin_ps: int
    name: str
    """The name of the tensor, or of the operation that made it."""
    shape: tuple[int, ...]
    dtype: str
    module: Any = ""
    """The module whose code allocated it, as anything that has a text; empty without one."""
    file: str = ""
    line: int = 0
    """The line of the program; 0 where it is not known."""
    end: int = NEVER
    end_ps: int = NEVER
    phase: Phase = Phase.OTHER


class LiveAllocation:
    """Memory that is allocated now: what the log learns of it until it is freed.

    Of most ones it learns nothing: what is not set is the class's, and so it is made without a call
    of Python.
    """

    begin: int = NEVER
    """As of an :class:`Allocation`."""
    phase: Phase = Phase.OTHER
    end: int = NEVER
    name: str = ""
    """A better one than it was allocated with."""
    module: Any = None
    """Whose it is, where that is not the module that allocated it."""

    def is_for(self, phase: Phase) -> None:
        """Note that it is for a phase, unless it is known to be for one that counts before it."""
        if _RANKS[phase] < _RANKS[self.phase]:
            self.phase = phase


_FIELDS = attrgetter("begin", "end", "begin_ps", "end_ps", "size_bytes")
_NUMBERS = ("rank", "sip_id", "size_bytes", "asked_bytes", "begin", "begin_ps")
_AT_BEGIN = (*_NUMBERS, "name", "layout", "place")
"""What is known of an allocation when it is made, in the order in which the log keeps it."""
_AT_END = ("begin", "end", "end_ps", "phase", "name", "module")
FIELDS = (
    *(*_NUMBERS, "name", "shape", "dtype", "module", "file", "line"),
    *("end", "end_ps", "phase"),
)
"""The fields of an :class:`Allocation`, in order."""


Layout = tuple[tuple[int, ...], str]
"""Shape and dtype."""
NO_LAYOUT: Layout = ((), "")
"""The layout of what is no tensor."""
Place = tuple[Any, str, int]
"""Module, file and line."""


def steps_in_use(
    entries: Sequence[Allocation],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return what some allocations have in use after each of their events.

    That is: the numbers of the events, their times in ps, the bytes that are in use from each on.
    """
    columns = np.array([_FIELDS(entry) for entry in entries], np.int64).reshape(-1, 5).T
    begin, end, begin_ps, end_ps, size_bytes = columns
    freed = end != NEVER
    numbers = np.concatenate([begin, end[freed]])
    times_ps = np.concatenate([begin_ps, end_ps[freed]])
    sizes = np.concatenate([size_bytes, -size_bytes[freed]])
    order = np.argsort(numbers)
    return numbers[order], np.maximum.accumulate(times_ps[order]), np.cumsum(sizes[order])


class AllocationLog:
    """The allocations of a run, in order.

    They are kept as plain values, a few objects for what is allocated now, and become objects when
    they are read: until then Python's search for garbage has nothing to look at. A recorder of many
    appends to the log's own lists, as :meth:`began` and :meth:`ended` do.
    """

    def __init__(self, read: Callable[[], list[Sequence[Any]]] | None = None) -> None:
        """Make an empty log, or one of columns that are read when somebody asks for them."""
        self.on_event: Callable[[int], None] | None = None
        """Called with the number of each event as it happens."""
        self.next_event = count().__next__
        """Returns the number of the next event. Python may free memory at any moment, also while
        another event is being noted."""
        self.plain_begins: list[Any] = []
        """Nine values for each allocation, in order: numbers, the name, shape and dtype, then the
        place as module, file and line: one object for all that is allocated there."""
        self.plain_ends: list[Any] = []
        """Six values for each free: begin, end and its time, phase, name, module."""
        self._places: dict[Place, Place] = {}
        self.live: dict[int, LiveAllocation] = {}
        """What is allocated now, by begin."""
        self._read = read
        self._entries: list[Allocation] | None = []
        self._columns: list[Sequence[Any]] = [()] * len(FIELDS)
        self._state: Any = None
        """What there was when the columns were made."""

    def began(
        self,
        rank: int,
        sip_id: int,
        size_bytes: int,
        asked_bytes: int,
        begin_ps: int,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        module: Any = "",
        file: str = "",
        line: int = 0,
    ) -> LiveAllocation:
        """Note an allocation; the arguments are fields of an :class:`Allocation`."""
        place = (module, file, line)
        place = self._places.setdefault(place, place)
        layout = (shape, dtype)
        begin = self.next_event()
        self.plain_begins.extend(
            (rank, sip_id, size_bytes, asked_bytes, begin, begin_ps, name, layout, place)
        )
        live_allocation = self.live[begin] = LiveAllocation()
        live_allocation.begin = begin
        if self.on_event is not None:
            self.on_event(begin)
        return live_allocation

    def ended(self, allocation: LiveAllocation, end_ps: int) -> None:
        """Note that memory is freed."""
        begin = allocation.begin
        allocation.end = end = self.next_event()
        self.plain_ends.extend(
            (begin, end, end_ps, allocation.phase, allocation.name, allocation.module)
        )
        del self.live[begin]
        if self.on_event is not None:
            self.on_event(end)

    @property
    def entries(self) -> list[Allocation]:
        """The allocations, in the order in which they were made; a copy of what is noted so far."""
        columns = self.columns()
        if self._entries is None:
            lists = [item.tolist() if isinstance(item, np.ndarray) else item for item in columns]
            self._entries = list(map(Allocation, *lists))
        return self._entries

    def of(self, rank: int, sip_id: int) -> list[Allocation]:
        """Return the allocations of one rank on one SIP."""
        ranks, sips, *_ = columns = self.columns()
        mine = np.flatnonzero((np.asarray(ranks) == rank) & (np.asarray(sips) == sip_id))
        return list(map(Allocation, *_picked(columns, mine)))

    def on(self, sip_id: int) -> list[Allocation]:
        """Return the allocations on one SIP."""
        return [entry for entry in self.entries if entry.sip_id == sip_id]

    def columns(self) -> list[Sequence[Any]]:
        """Return the fields of all allocations, in the order of :data:`FIELDS`."""
        if self._read is not None:
            self._columns, self._read, self._entries = self._read(), None, None
        live = [(live.begin, live.phase, live.name, live.module) for live in self.live.values()]
        state = (len(self.plain_begins), len(self.plain_ends), live)
        if self.plain_begins and state != self._state:
            self._state, self._entries = state, None
            self._columns = self._columns_now(live)
        return self._columns

    def _columns_now(self, live: Sequence[tuple[int, Phase, str, Any]]) -> list[Sequence[Any]]:
        width = len(_AT_BEGIN)
        ends = list(self.plain_ends)  # Python may free something meanwhile
        plain: dict[str, Any] = {
            name: self.plain_begins[place::width] for place, name in enumerate(_AT_BEGIN)
        }
        for name in _NUMBERS:
            plain[name] = np.array(plain[name], np.int64)
        plain["shape"], plain["dtype"] = _unzipped(plain.pop("layout"), 2)
        plain["module"], plain["file"], lines = _unzipped(plain.pop("place"), 3)
        plain["line"] = np.array(lines, np.int64)
        begins = plain["begin"]
        size = len(begins)
        ended, end, end_ps, phases, names, modules = (
            ends[place :: len(_AT_END)] for place in range(len(_AT_END))
        )
        places = np.searchsorted(begins, np.array(ended, np.int64))
        for name, values in (("end", end), ("end_ps", end_ps)):
            column = np.full(size, NEVER, np.int64)
            column[places] = values
            plain[name] = column
        plain["phase"] = phase = [Phase.OTHER] * size
        for place, known in zip(places.tolist(), phases, strict=True):
            phase[place] = known
        renamed = [
            pair
            for pair in zip(ended, phases, names, modules, strict=True)
            if pair[2] or pair[3] is not None
        ]
        for begin, known, name, module in [*live, *renamed]:
            place = int(np.searchsorted(begins, begin))
            phase[place] = known
            plain["name"][place] = name or plain["name"][place]
            if module is not None:
                plain["module"][place] = module
        return [plain[name] for name in FIELDS]


def _unzipped(rows: Iterable[tuple[Any, ...]], width: int) -> list[list[Any]]:
    flat = list(chain.from_iterable(rows))
    return [flat[place::width] for place in range(width)]


def _picked(columns: Sequence[Sequence[Any]], places: npt.NDArray[np.int64]) -> Iterator[list[Any]]:
    listed = places.tolist()
    for column in columns:
        if isinstance(column, np.ndarray):
            yield column[places].tolist()
        else:
            yield [column[place] for place in listed]
