"""Perfetto's own format, a protocol buffer of track events, onto a file.

Source: protos/perfetto/trace of the Perfetto project: the fields below are those of the messages
that comments name. Times are whole nanoseconds, rounded down as in ``events``.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from kernbench.report.formats.events import Track

_VARINT, _FIXED64, _DELIMITED = 0, 1, 2
_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Return an integer of 64 bits in groups of seven, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    value &= _MASK
    if value < 0x80:
        return _BYTES[value]
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


_BYTES = [bytes([value]) for value in range(0x80)]


def integer(number: int, value: int) -> bytes:
    """Return a field of type int32, int64, uint64, bool or of an enumeration."""
    return varint(number << 3 | _VARINT) + varint(value)


def fixed64(number: int, value: int) -> bytes:
    """Return a field of type fixed64."""
    return varint(number << 3 | _FIXED64) + struct.pack("<Q", value)


def double(number: int, value: float) -> bytes:
    """Return a field of type double."""
    return varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def message(number: int, value: bytes) -> bytes:
    """Return a field that holds a message, or bytes."""
    return varint(number << 3 | _DELIMITED) + varint(len(value)) + value


def text(number: int, value: str) -> bytes:
    """Return a field of type string."""
    return message(number, value.encode())


_BEGIN, _END, _COUNTER = 1, 2, 4
"""TrackEvent.Type"""
_EXPLICIT = 3
"""TrackDescriptor.ChildTracksOrdering: by ``sibling_order_rank``."""
_STATE_CLEARED, _NEEDS_STATE = 1, 2
"""TracePacket.SequenceFlags"""
_FIRST_COUNTER = 1_000
"""The rank of the first counter of a group: below all its tracks of slices."""
_PACKED_BYTES = 1 << 19
_PACKET = b"\x0a"
"""What begins each packet of a Trace: field 1, a message."""
_SEQUENCE = integer(10, 1)
_OF_EVENT = _SEQUENCE + integer(13, _NEEDS_STATE)


@dataclass(slots=True)
class _Slices:
    """The slices of a track, in order of time; of those that begin together, the outer first."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """The bodies of the events that begin them, but for the track."""
    leaving: dict[int, list[int]] = field(default_factory=dict)
    """Numbers of the arrows that leave a slice, by its position."""
    arriving: dict[int, list[int]] = field(default_factory=dict)


class _Texts:
    """Texts that are written once, under a number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, value: str) -> int:
        return self.numbers.setdefault(value, len(self.numbers) + 1)

    def fields(self, number: int) -> Iterator[bytes]:
        """Yield them as fields of InternedData: EventName and the like are alike."""
        for value, iid in self.numbers.items():
            yield message(number, integer(1, iid) + text(2, value))


class TrackEventFile:
    """Writes one trace; a context manager whose end writes it.

    It has the methods of ``EventFile`` for the JSON. All tracks lie in one group,
    as readers sort what lies in none by name. With ``packs`` packets are compressed, in the way
    that the format has for it.
    """

    def __init__(self, out: BinaryIO, about: Mapping[str, Any], *, packs: bool = True) -> None:
        self._out = out
        self._packs = packs
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._descriptors: list[bytes] = []
        self._slices: dict[int, _Slices] = {}
        self._counters: dict[tuple[int, str], tuple[int, list[tuple[int, float]]]] = {}
        self._names, self._kinds, self._keys, self._values = (_Texts() for _ in range(4))
        self._flows = 0
        self._ids = 0
        described = ", ".join(f"{key}: {value}" for key, value in about.items())
        self._root = self._describe(f"run on {about['machine']}", 0, text(14, described))

    def __enter__(self) -> TrackEventFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write_all()

    def process(self, name: str, sort_index: int) -> int:
        """Name a new group of tracks and return its number."""
        return self._describe(name, sort_index, integer(5, self._root))

    def track(self, pid: int, name: str, sort_index: int) -> Track:
        """Name a new track of a group and return it."""
        uuid = self._describe(name, sort_index, integer(5, pid))
        self._slices[uuid] = _Slices()
        return Track(pid, uuid)

    def slice(
        self,
        track: Track,
        name: str,
        kind: str,
        start_ps: int,
        end_ps: int,
        args: Mapping[str, Any],
    ) -> None:
        """Keep one slice; those of a track come by their start."""
        slices = self._slices[track.tid]
        slices.starts.append(start_ps // 1000)
        slices.ends.append(end_ps // 1000)
        named = integer(10, self._names.number(name)) + integer(3, self._kinds.number(kind))
        slices.bodies.append(named + b"".join(self._annotations(4, args)))

    def flow(self, name: str, source: tuple[Track, int], target: tuple[Track, int]) -> None:
        """Keep an arrow between two places that each lie in a slice of their track.

        It leaves the beginning of a slice and arrives at the end of the other one, which may have
        begun before: readers follow arrows forward in time.
        """
        self._flows += 1
        for (track, time_ps), side in ((source, "leaving"), (target, "arriving")):
            slices = self._slices[track.tid]
            position = max(bisect_right(slices.starts, time_ps // 1000) - 1, 0)
            getattr(slices, side).setdefault(position, []).append(self._flows)

    def counter(self, pid: int, name: str, unit: str, time_ps: int, value: float) -> None:
        """Keep the value that a counter has from ``time_ps`` on."""
        pair = self._counters.get((pid, name))
        if pair is None:
            rank = _FIRST_COUNTER + len(self._counters)
            # CounterDescriptor
            described = message(8, text(6, unit))
            uuid = self._describe(name, rank, integer(5, pid) + described)
            pair = self._counters[pid, name] = (uuid, [])
        pair[1].append((time_ps // 1000, value))

    def _describe(self, name: str, rank: int, fields: bytes) -> int:
        """Keep a TrackDescriptor, and return its number."""
        self._ids += 1
        ordered = integer(11, _EXPLICIT) + integer(12, rank)
        described = integer(1, self._ids) + text(2, name) + ordered + fields
        self._descriptors.append(message(60, described))
        return self._ids

    def _annotations(self, number: int, args: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield values with names, each a DebugAnnotation."""
        for key, value in args.items():
            yield message(number, integer(1, self._keys.number(key)) + self._value(value))

    def _value(self, value: Any) -> bytes:
        # Whatever is neither is shown as text.
        return self._encoders().get(type(value), self._as_text)(value)

    def _encoders(self) -> Mapping[type, Callable[[Any], bytes]]:
        return {
            bool: lambda value: integer(2, value),
            int: lambda value: integer(4, value),
            float: lambda value: double(5, value),
            list: lambda value: b"".join(message(12, self._value(item)) for item in value),
            dict: lambda value: b"".join(self._annotations(11, value)),
        }

    def _as_text(self, value: Any) -> bytes:
        return integer(17, self._values.number(str(value)))

    def _write_all(self) -> None:
        interned = [
            *self._kinds.fields(1),
            *self._names.fields(2),
            *self._keys.fields(3),
            *self._values.fields(29),
        ]
        begun = integer(13, _STATE_CLEARED) + integer(87, 1)
        self._packet(begun + _SEQUENCE + message(12, b"".join(interned)))
        for described in self._descriptors:
            self._packet(_SEQUENCE + described)
        for uuid, slices in self._slices.items():
            self._write_slices(integer(11, uuid), slices)
        for uuid, points in self._counters.values():
            of_track = integer(9, _COUNTER) + integer(11, uuid)
            for time_ns, value in points:
                self._event(time_ns, of_track + double(44, value))
        self._flush()

    def _write_slices(self, of_track: bytes, slices: _Slices) -> None:
        begin, end = integer(9, _BEGIN) + of_track, integer(9, _END) + of_track
        open_slices: list[tuple[int, int]] = []

        def close(until_ns: int) -> None:
            while open_slices and open_slices[-1][0] <= until_ns:
                end_ns, position = open_slices.pop()
                arrows = slices.arriving.get(position, ())
                self._event(end_ns, end + b"".join(fixed64(48, arrow) for arrow in arrows))

        for position, (start_ns, body) in enumerate(zip(slices.starts, slices.bodies, strict=True)):
            close(start_ns)
            arrows = slices.leaving.get(position, ())
            self._event(start_ns, begin + body + b"".join(fixed64(47, arrow) for arrow in arrows))
            open_slices.append((slices.ends[position], position))
        close(max(slices.ends, default=0))

    def _event(self, time_ns: int, event: bytes) -> None:
        self._packet(integer(8, time_ns) + _OF_EVENT + message(11, event))

    def _packet(self, packet: bytes) -> None:
        self._pending += (_PACKET, varint(len(packet)), packet)
        self._pending_bytes += len(packet)
        if self._pending_bytes > _PACKED_BYTES:
            self._flush()

    def _flush(self) -> None:
        packets = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        # A Trace inside of a TracePacket
        self._out.write(message(1, message(50, zlib.compress(packets))) if self._packs else packets)
