"""The last accesses to each byte of a buffer, if programs order each other by atomics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum, auto

import numpy as np

from kernbench.commands import Atomic, DmaWrite, Transfer
from kernbench.dtypes import Array
from kernbench.errors import DataRaceError
from kernbench.memory import Buffer
from kernbench.replay import coordinates
from kernbench.sanitizer.facts.launch import Places, element
from kernbench.sanitizer.ordering.segments import Segments
from kernbench.sanitizer.ordering.touches import Touch, TouchKind, TouchPart, is_volatile


class AccessKind(Enum):
    """A way to access memory; two accesses race by :data:`RACES` and :data:`RACES_ELSEWHERE`."""

    READ = auto()
    WRITE = auto()
    UPDATE = auto()
    """An atomic that every device sees as one (``scope="sys"``)."""
    UPDATE_HERE = auto()
    """An atomic that programs of its own device see as one (``scope="gpu"``)."""
    OBSERVE = auto()
    """A look at what others change: a volatile load, or an atomic one."""


RACES: Mapping[AccessKind, tuple[AccessKind, ...]] = {
    AccessKind.READ: (AccessKind.WRITE, AccessKind.UPDATE, AccessKind.UPDATE_HERE),
    AccessKind.WRITE: (
        AccessKind.WRITE,
        AccessKind.READ,
        AccessKind.UPDATE,
        AccessKind.UPDATE_HERE,
        AccessKind.OBSERVE,
    ),
    AccessKind.UPDATE: (AccessKind.WRITE, AccessKind.READ),
    AccessKind.UPDATE_HERE: (AccessKind.WRITE, AccessKind.READ),
    AccessKind.OBSERVE: (AccessKind.WRITE,),
}
"""The kinds with which each races where nothing orders the two."""

RACES_ELSEWHERE: Mapping[AccessKind, tuple[AccessKind, ...]] = {
    AccessKind.READ: (),
    AccessKind.WRITE: (),
    AccessKind.UPDATE: (AccessKind.UPDATE_HERE,),
    AccessKind.UPDATE_HERE: (AccessKind.UPDATE, AccessKind.UPDATE_HERE, AccessKind.OBSERVE),
    AccessKind.OBSERVE: (AccessKind.UPDATE_HERE,),
}
"""Likewise those of other devices with which it races, if they come to the same memory."""


def kind_of_access(command: Transfer) -> AccessKind:
    """Return what a command does to memory beside other programs of its launch.

    An atomic of ``scope="cta"`` is one for the threads of its program alone: to others it is a
    plain access. Source: PTX ISA, memory consistency model, morally strong operations.
    """
    if isinstance(command, Atomic):
        looks = command.kind == "load"
        if command.scope == "cta":
            return AccessKind.READ if looks else AccessKind.WRITE
        if looks:
            return AccessKind.OBSERVE
        return AccessKind.UPDATE if command.scope == "sys" else AccessKind.UPDATE_HERE
    if isinstance(command, DmaWrite):
        return AccessKind.WRITE
    return AccessKind.OBSERVE if is_volatile(command) else AccessKind.READ


_ADVICE = "programs of a launch run in no order: use an atomic, or give each its own place"


class Touched:
    """Who last accessed every granule of one buffer in each way in one launch.

    Entries are 0 for nobody, ``(program + 1) * num_places + place`` for one program, and for
    several that may be side by side ``-1 - place`` of the last.
    """

    def __init__(
        self, size_bytes: int, granule: int, places: Places, grid: tuple[int, int, int]
    ) -> None:
        self._shift = granule.bit_length() - 1
        self._places, self._num_places = places, len(places)
        self._grid = grid
        # Granules divide an element's size, which is a power of two.
        self._length = -(-size_bytes // granule)
        self._last: dict[AccessKind, Array] = {}

    def look(
        self, kind: AccessKind, where: Array, programs: Array, place: int, itemsize: int
    ) -> tuple[int, str] | None:
        """Note accesses to ``itemsize`` bytes at ``where`` by ``programs``.

        Returns a lane that races and in words with what, or None.
        """
        codes = (programs + 1) * self._num_places + place
        for at in self._granules(where, itemsize):
            for other in RACES[kind]:
                known = self._last.get(other)
                conflict = None if known is None else self._conflict(known[at], programs)
                if conflict is not None:
                    return conflict
            mine = self._last.get(kind)
            if mine is None:
                mine = self._last[kind] = np.zeros(self._length, np.int64)
            before = mine[at]
            mine[at] = codes
            # Several in this very access: the one that remains is the other.
            remains = mine[at]
            if kind is AccessKind.WRITE:
                conflict = None if (remains == codes).all() else self._conflict(remains, programs)
                if conflict is not None:
                    return conflict
                continue
            several = (before < 0) | self._others(before, programs)
            several |= remains // self._num_places - 1 != programs
            mine[at[several]] = -1 - place
        return None

    def _granules(self, where: Array, itemsize: int) -> list[Array]:
        first = where >> self._shift if self._shift else where
        count = max(itemsize >> self._shift, 1)
        return [first + step if step else first for step in range(count)]

    def _others(self, entries: Array, programs: Array) -> Array:
        return np.asarray((entries > 0) & (entries // self._num_places - 1 != programs))

    def _conflict(self, entries: Array, programs: Array) -> tuple[int, str] | None:
        if not entries.any():
            return None
        bad = self._others(entries, programs) | (entries < 0)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        entry = int(entries[at])
        if entry < 0:
            verb, _, where = self._places[-1 - entry].partition(" ")
            other = f"several other programs {verb.removesuffix('s')} {where}"
        else:
            program = coordinates(entry // self._num_places - 1, self._grid)
            other = f"program {program} {self._places[entry % self._num_places]}"
        return at, f"{other}; {_ADVICE}"


Found = tuple[int, str]
"""A lane of an access, and in words what it races with."""

_PLACE_BITS = 20
_LOOKS_BACK = 8
"""How many links of a chain are compared with a new one."""

ADVICE = (
    "nothing orders the two: use an atomic, or signal with one afterwards and wait for it before"
)
_WIDER = 'programs of two devices see each other\'s atomics with scope="sys" alone'
_KINDS = {
    TouchKind.READ: AccessKind.READ,
    TouchKind.WRITE: AccessKind.WRITE,
    # They race with writes only: a volatile load is among them.
    TouchKind.ATOMIC: AccessKind.OBSERVE,
}


class OrderedMap:
    """The last writer, who else came since, and what was released, per granule of one buffer.

    A *code* is a segment and the line where it touched the granule; 0 is nobody. Several are a
    chain, by a negative number: what was there before, and the codes that one access has added.
    """

    def __init__(self, size_bytes: int, segments: Segments, places: Places) -> None:
        self.segments = segments
        self._size_bytes = size_bytes
        self._places = places
        self._granule = 0
        self._last: dict[AccessKind, Array] = {}
        self._released: Array = np.zeros(0, np.int64)
        self._chains: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        self._chain_numbers: dict[tuple[int, tuple[int, ...]], int] = {}

    def look(
        self, kind: AccessKind, where: Array, segments: Array, place: int, itemsize: int
    ) -> Found | None:
        """Record accesses at bytes ``where`` by ``segments``; return a lane that races, or None."""
        codes = (segments << _PLACE_BITS) | place
        elsewhere = RACES_ELSEWHERE[kind] if self.segments.has_devices else ()
        for at in self._granules(where, itemsize):
            for other in RACES[kind]:
                conflict = self._conflict(other, at, segments)
                if conflict is not None:
                    return conflict
            for other in elsewhere:
                conflict = self._conflict(other, at, segments, elsewhere=True)
                if conflict is not None:
                    return conflict
            if kind is not AccessKind.WRITE:
                self._push(self._of(kind), at, codes)
                continue
            self._of(kind)[at] = codes
            # Of several writers in this very access one remains.
            conflict = self._conflict(kind, at, segments)
            if conflict is not None:
                return conflict
            # Whoever is ordered behind this write is ordered behind what came before it.
            for other, entries in self._last.items():
                if other is not AccessKind.WRITE:
                    entries[at] = 0
        return None

    def _of(self, kind: AccessKind) -> Array:
        """Return who accessed each granule in a way."""
        result = self._last.get(kind)
        if result is None:
            result = self._last[kind] = np.zeros(len(self._released), np.int64)
        return result

    def add(self, touch: Touch, buffer: Buffer) -> None:
        """Record the accesses of an operation that does not synchronize while it runs.

        Raises:
            DataRaceError: It is unordered with an operation that has touched the same bytes.
        """
        first = self.segments.begin((1, 1, 1), touch.clock, touch.who)
        for part in touch.parts:
            place = self._places.number(part.name, touch.kind.value)
            kind = _KINDS[touch.kind]
            for low, high in part.spans().tolist():
                where = np.arange(low, high, part.itemsize)
                look = self.look(kind, where, np.repeat(first, len(where)), place, part.itemsize)
                if look is not None:
                    raise _race(touch, part, buffer, int(where[look[0]]), look[1])

    def heads(self, where: Array, itemsize: int) -> Array:
        """Return per lane what was released there, for :meth:`released`."""
        at = self._granules(where, itemsize)[0]  # which makes room for them
        return np.asarray(self._released[at])

    def released(self, head: int) -> Iterator[int]:
        """Yield the segments that have released something in one place."""
        for code in self._codes(head):
            yield code >> _PLACE_BITS

    def release(self, where: Array, segments: Array, itemsize: int, *, follows: bool) -> None:
        """Release the accesses of ``segments`` in places, in addition to earlier releases there.

        With ``follows`` they have taken that up, and stand for it.
        """
        at, codes = self._granules(where, itemsize)[0], segments << _PLACE_BITS
        if follows:
            self._released[at] = codes
        else:
            self._push(self._released, at, codes)

    def _granules(self, where: Array, itemsize: int) -> list[Array]:
        shared = math.gcd(itemsize, int(np.gcd.reduce(where)) if len(where) else 0)
        if not self._granule:
            self._granule = shared
            length = -(-self._size_bytes // shared)
            self._released = np.zeros(length, np.int64)
        elif shared % self._granule:
            self._refine(math.gcd(shared, self._granule))
        first = where // self._granule
        return [first + step if step else first for step in range(itemsize // self._granule)]

    def _refine(self, granule: int) -> None:
        """Split every granule, as an access begins inside of one."""
        factor = self._granule // granule
        length = -(-self._size_bytes // granule)
        self._released = np.repeat(self._released, factor)[:length]
        for kind, entries in self._last.items():
            self._last[kind] = np.repeat(entries, factor)[:length]
        self._granule = granule

    def _conflict(
        self, kind: AccessKind, at: Array, segments: Array, *, elsewhere: bool = False
    ) -> Found | None:
        """Return the first lane where a program unordered with its own has accessed in a way.

        ``elsewhere``: only programs of other devices count.
        """
        known = self._last.get(kind)
        if known is None:
            return None
        entries = known[at]
        if not entries.any():
            return None
        mine = self.segments.programs_of(segments)
        asked = np.flatnonzero((entries < 0) | (self._programs_of(entries) != mine))
        asked = asked[entries[asked] != 0]
        if not len(asked):
            return None
        firsts, _ = _distinct_pairs(entries[asked], segments[asked])
        for lane in asked[np.sort(firsts)].tolist():
            segment = int(segments[lane])
            for code in self._codes(int(entries[lane])):
                theirs = code >> _PLACE_BITS
                if elsewhere and not self.segments.are_apart(theirs, segment):
                    continue
                if not self.segments.is_before(theirs, segment):
                    who = self.segments.describe(theirs, segment)
                    place = self._places[code & ((1 << _PLACE_BITS) - 1)]
                    return lane, f"{who} {place}; {_WIDER if elsewhere else ADVICE}"
        return None

    def _programs_of(self, entries: Array) -> Array:
        """Return the program of every entry that is a code; 0 where there is none or a chain."""
        return self.segments.programs_of(np.where(entries < 0, 0, entries >> _PLACE_BITS))

    def _codes(self, entry: int) -> Iterator[int]:
        while entry < 0:
            entry, codes = self._chains[-entry]
            yield from codes
        if entry:
            yield entry

    def _push(self, entries: Array, at: Array, codes: Array) -> None:
        """Add codes to what is there, in place of an older one of the same program alone."""
        before = entries[at]
        entries[at] = np.arange(len(at))
        remains = entries[at]
        mine = self._programs_of(codes)
        if (mine[remains] != mine).any():
            entries[at] = before
            for rows, row_codes in _by_granule(at, codes):
                self._put(entries, rows, row_codes)
            return
        alone = (before == 0) | ((before > 0) & (self._programs_of(before) == mine))
        after = np.where(alone, codes, before)
        others = np.flatnonzero(~alone)
        if len(others):
            firsts, which = _distinct_pairs(before[others], codes[others])
            lanes = others[firsts]
            pairs = zip(before[lanes].tolist(), codes[lanes].tolist(), strict=True)
            after[others] = np.array([self._chained(b, (c,)) for b, c in pairs])[which]
        entries[at] = after

    def _put(self, entries: Array, at: Array, codes: Array) -> None:
        """Add several codes per granule, ``[granules, codes]``."""
        sets, which = np.unique(codes, axis=0, return_inverse=True)
        which = which.reshape(-1)
        before = entries[at]
        firsts, of = _distinct_pairs(before, which)
        listed = [tuple(item) for item in sets.tolist()]
        pairs = zip(before[firsts].tolist(), which[firsts].tolist(), strict=True)
        entries[at] = np.array([self._chained(b, listed[row]) for b, row in pairs])[of]

    def _chained(self, before: int, codes: tuple[int, ...]) -> int:
        """Return the number of a chain with another link, or of one that has it already."""
        link = before
        for _ in range(_LOOKS_BACK):
            if link >= 0:
                break
            link, known = self._chains[-link]
            if known == codes:
                return before
        key = (before, codes)
        number = self._chain_numbers.get(key)
        if number is None:
            number = self._chain_numbers[key] = len(self._chains)
            self._chains.append(key)
        return -number


def _distinct_pairs(left: Array, right: Array) -> tuple[Array, Array]:
    """Return where each pair occurs first, and which of these pairs every lane has."""
    if not len(left):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # Neighbours are mostly alike, so runs of them are compared.
    is_new = np.ones(len(left), np.bool_)
    is_new[1:] = (left[1:] != left[:-1]) | (right[1:] != right[:-1])
    starts = np.flatnonzero(is_new)
    _, first = np.unique(left[starts], return_inverse=True)
    others, second = np.unique(right[starts], return_inverse=True)
    _, firsts, which = np.unique(
        first * len(others) + second, return_index=True, return_inverse=True
    )
    return starts[firsts], which[np.cumsum(is_new) - 1]


def _by_granule(at: Array, codes: Array) -> Iterator[tuple[Array, Array]]:
    """Yield granules with the codes that each is given, those with equally many together."""
    order = np.lexsort((codes, at))
    at, codes = at[order], codes[order]
    is_new = np.ones(len(at), np.bool_)
    is_new[1:] = (at[1:] != at[:-1]) | (codes[1:] != codes[:-1])
    at, codes = at[is_new], codes[is_new]
    granules, starts, counts = np.unique(at, return_index=True, return_counts=True)
    for count in np.unique(counts).tolist():
        these = np.flatnonzero(counts == count)
        yield granules[these], codes[starts[these][:, None] + np.arange(count)]


def _race(touch: Touch, part: TouchPart, buffer: Buffer, byte: int, other: str) -> DataRaceError:
    place = element(buffer, byte, part.itemsize)
    return DataRaceError(f"{part.name} ({touch.who}) {touch.kind.value} {place}, which {other}")
