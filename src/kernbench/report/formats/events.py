"""The Chrome trace-event format, event by event, onto a file.

Source: "Trace Event Format", Google; what Perfetto's JSON importer reads. Times are microseconds
with three decimals: whole nanoseconds, rounded down, so that slices which do not overlap in
picoseconds do not overlap on screen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class Track:
    """A named line of the timeline."""

    pid: int
    tid: int


def microseconds(time_ps: int) -> str:
    """Return a time as the format's number.

    >>> microseconds(1_234_567)
    '1.234'
    """
    whole, rest = divmod(time_ps // 1000, 1000)
    return f"{whole}.{rest:03d}"


class EventFile:
    """Writes one trace; a context manager that opens and closes the JSON around the events."""

    def __init__(self, out: TextIO, about: Mapping[str, Any]) -> None:
        self._out = out
        self._about = about
        self._ids = 0
        self._flows = 0
        self._separator = "\n"

    def __enter__(self) -> EventFile:
        about = json.dumps(self._about, separators=(",", ":"))
        self._out.write(f'{{"displayTimeUnit":"ns","otherData":{about},"traceEvents":[')
        return self

    def __exit__(self, *_: object) -> None:
        self._out.write("\n]}\n")

    def process(self, name: str, sort_index: int) -> int:
        """Name a new group of tracks and return its pid."""
        pid = self._new_id()
        for what, value in (("name", name), ("sort_index", sort_index)):
            args = json.dumps({what: value})
            self._write(f'{{"ph":"M","pid":{pid},"tid":0,"name":"process_{what}","args":{args}}}')
        return pid

    def track(self, pid: int, name: str, sort_index: int) -> Track:
        """Name a new track of a group and return it."""
        tid = self._new_id()
        for what, value in (("name", name), ("sort_index", sort_index)):
            args = json.dumps({what: value})
            self._write(
                f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_{what}","args":{args}}}'
            )
        return Track(pid, tid)

    def slice(
        self,
        track: Track,
        name: str,
        kind: str,
        start_ps: int,
        end_ps: int,
        args: Mapping[str, Any],
    ) -> None:
        """Write one slice, complete with its duration."""
        duration = microseconds((end_ps // 1000 - start_ps // 1000) * 1000)
        self._write(
            f'{{"ph":"X","pid":{track.pid},"tid":{track.tid},"ts":{microseconds(start_ps)},'
            f'"dur":{duration},"cat":"{kind}","name":{json.dumps(name)},'
            f'"args":{json.dumps(args, separators=(",", ":"))}}}'
        )

    def flow(self, name: str, source: tuple[Track, int], target: tuple[Track, int]) -> None:
        """Write an arrow between two places that each lie in a slice of their track."""
        self._flows += 1
        for phase, (track, time_ps) in (('"s"', source), ('"f","bp":"e"', target)):
            self._write(
                f'{{"ph":{phase},"id":{self._flows},"pid":{track.pid},"tid":{track.tid},'
                f'"ts":{microseconds(time_ps)},"cat":"flow","name":"{name}"}}'
            )

    def counter(self, pid: int, name: str, unit: str, time_ps: int, value: float) -> None:
        """Write the value that a counter has from ``time_ps`` on."""
        self._write(
            f'{{"ph":"C","pid":{pid},"ts":{microseconds(time_ps)},"name":{json.dumps(name)},'
            f'"args":{{"{unit}":{json.dumps(value)}}}}}'
        )

    def _new_id(self) -> int:
        # Unique over processes and threads: readers take a tid equal to its pid for a main thread.
        self._ids += 1
        return self._ids

    def _write(self, event: str) -> None:
        self._out.write(self._separator)
        self._out.write(event)
        self._separator = ",\n"
