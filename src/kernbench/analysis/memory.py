"""What was in the memory of devices: how much over time, and what at the peak, adding up to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from kernbench.analysis.tables import SHOWN_LINES, TableColumn, fitting_table
from kernbench.errors import UsageError
from kernbench.memory import FIELDS, NEVER, Allocation, AllocationLog, Phase, steps_in_use
from kernbench.op_log import OpLog, Window
from kernbench.report import format_ns, format_share, format_size

Column = npt.NDArray[np.int64]

ROUNDING = "rounding"
"""What stands for bytes that the allocator gave and nobody asked for."""
_LINES = "allocated at"
_BARS = " ▁▂▃▄▅▆▇█"
_NUM_BARS = 24
_NUM_SPANS = 200
"""Parts of a run, for each of which the most bytes in use are given."""


class PartReport(TypedDict):
    """The bytes of the peak that have something in common."""

    name: str
    bytes: int
    tensors: int


class AliveReport(TypedDict):
    """One allocation that was alive at the peak."""

    name: str
    shape: list[int]
    dtype: str
    phase: str
    module: str
    file: str
    line: int
    bytes: int
    """What was asked for."""
    since_ns: float


class PeakReport(TypedDict):
    """The peak of one rank on one device; each list adds up to ``bytes``."""

    rank: int
    device: int
    bytes: int
    """The bytes in blocks of the allocator, as ``torch.cuda.max_memory_allocated`` counts them."""
    time_ns: float
    phases: list[PartReport]
    """The phases of what was allocated; ``rounding`` is what the allocator added."""
    modules: list[PartReport]
    lines: list[PartReport]
    tensors: list[AliveReport]
    """Largest first; with the rounding of ``phases`` they add up, too."""


class RankMemory(TypedDict):
    """One rank's use of one device."""

    rank: int
    device: int
    peak_bytes: int
    peak_ns: float
    high_water: list[tuple[float, int]]
    """When the high-water mark rose, in ns, and to what; of rises shorter than a 200th of the run
    the last ones."""
    in_use: list[tuple[float, int]]
    """Ends of 200 parts of the run, in ns, and the most bytes in use in each."""
    phases: list[PartReport]


class MemoryReport(TypedDict):
    """What ``kernbench memory --json`` prints."""

    ranks: list[RankMemory]
    peak: PeakReport
    """The peak of the rank that was asked for, else that of the rank with the highest."""


class _RankUse:
    """The allocations of one rank on one device, and the bytes in use after each event."""

    def __init__(
        self, key: tuple[int, int], entries: list[Allocation], within: Window | None = None
    ) -> None:
        self.rank, self.device = key
        self.entries = entries
        numbers, self.times_ps, self.in_use = steps_in_use(entries)
        peak = self._peak(within)
        self.peak_bytes = int(self.in_use[peak])
        self.peak_ps = int(self.times_ps[peak])
        event = int(numbers[peak])
        self.alive = [
            entry
            for entry in entries
            if entry.begin <= event and (entry.end == NEVER or entry.end > event)
        ]

    def _peak(self, within: Window | None) -> int:
        """Return the event after which most was in use, in a window if one is given."""
        if within is None:
            return int(np.argmax(self.in_use))
        intervals = within.intervals(self.rank)
        counts = np.zeros(len(self.times_ps), dtype=bool)
        for start_ps, end_ps in intervals:
            counts |= (self.times_ps >= start_ps) & (self.times_ps < end_ps)
            # What was in use when it began.
            before = int(np.searchsorted(self.times_ps, start_ps, side="right")) - 1
            counts[max(before, 0)] = True
        places = np.flatnonzero(counts)
        return int(places[np.argmax(self.in_use[places])]) if len(places) else 0

    def phases(self) -> list[PartReport]:
        return _parts(self.alive, lambda allocation: allocation.phase.value) + self._rounding()

    def _rounding(self) -> list[PartReport]:
        added = [allocation.size_bytes - allocation.asked_bytes for allocation in self.alive]
        rounded = [size_bytes for size_bytes in added if size_bytes]
        return (
            [{"name": ROUNDING, "bytes": sum(rounded), "tensors": len(rounded)}] if rounded else []
        )

    def peak(self) -> PeakReport:
        return {
            "rank": self.rank,
            "device": self.device,
            "bytes": self.peak_bytes,
            "time_ns": self.peak_ps / 1000,
            "phases": self.phases(),
            "modules": _parts(self.alive, lambda allocation: str(allocation.module))
            + self._rounding(),
            "lines": _parts(self.alive, lambda row: f"{row.file}:{row.line}" if row.line else "")
            + self._rounding(),
            "tensors": [
                {
                    "name": item.name,
                    "shape": list(item.shape),
                    "dtype": item.dtype,
                    "phase": item.phase.value,
                    "module": str(item.module),
                    "file": item.file,
                    "line": item.line,
                    "bytes": item.asked_bytes,
                    "since_ns": item.begin_ps / 1000,
                }
                for item in sorted(self.alive, key=lambda item: (-item.asked_bytes, item.begin))
            ],
        }

    def summary(self, end_ps: int) -> RankMemory:
        ends_ps = np.linspace(0, end_ps, _NUM_SPANS + 1).astype(np.int64)[1:]
        most = self._most_until(ends_ps)
        marks = np.maximum.accumulate(most)
        rises = np.flatnonzero(np.diff(marks, prepend=0))
        # The event that brought each mark: the first with as much.
        first = np.searchsorted(np.maximum.accumulate(self.in_use), marks[rises])
        return {
            "rank": self.rank,
            "device": self.device,
            "peak_bytes": self.peak_bytes,
            "peak_ns": self.peak_ps / 1000,
            "high_water": [
                (float(time_ps / 1000), int(size_bytes))
                for time_ps, size_bytes in zip(self.times_ps[first], marks[rises], strict=True)
            ],
            "in_use": [
                (float(end / 1000), int(size_bytes))
                for end, size_bytes in zip(ends_ps, most, strict=True)
            ],
            "phases": self.phases(),
        }

    def _most_until(self, ends_ps: Column) -> Column:
        """Return the most bytes in use between each time and the one before it."""
        stops = np.searchsorted(self.times_ps, ends_ps, side="right")
        stops[-1] = len(self.in_use)
        starts = np.concatenate([[0], stops[:-1]])
        return _ints(
            [
                # What is in use when the part begins, and all that comes in it.
                self.in_use[max(start - 1, 0) : stop].max() if stop else 0
                for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
            ]
        )


def memory_use(log: OpLog, rank: int | None = None, within: Window | None = None) -> MemoryReport:
    """Return what was allocated on the devices of a run, and what was alive at the peak.

    Args:
        log: The log of a run that records its memory.
        rank: Whose peak is described; None: that of the rank with the highest.
        within: The part of the run whose peaks are meant; None: all of it.

    Raises:
        UsageError: The run has no record of its memory, or allocated none, or the rank did not.
    """
    uses = _uses(log, within)
    asked = [use for use in uses if rank is None or use.rank == rank]
    if not asked:
        known = ", ".join(str(rank) for rank in sorted({use.rank for use in uses})[:8])
        ran = log.running is None or rank in log.running
        what = "allocated nothing on a device" if ran else "did not run, as the run was folded"
        said = f"rank {rank} {what}; ranks that did: {known}"
        raise UsageError(log.about(said))
    end_ps = max(log.end_ps, *(int(use.times_ps[-1]) for use in uses))
    return {
        "ranks": [use.summary(end_ps) for use in uses],
        "peak": max(asked, key=lambda use: use.peak_bytes).peak(),
    }


def memory_curve(log: OpLog, rank: int, device: int) -> tuple[Column, Column]:
    """Return the bytes that a rank has in use on a device: times in ps, and bytes from then on.

    Raises:
        UsageError: The run has no record of it.
    """
    for use in _uses(log):
        if (use.rank, use.device) == (rank, device):
            return use.times_ps, use.in_use
    raise UsageError(log.about(f"rank {rank} allocated nothing on device {device}"))


def peak_line(log: OpLog) -> list[str]:
    """Return what was in memory at the highest peak, as a line for the end of a report."""
    if log.allocations is None:
        return []
    owner = _highest(log.allocations)
    if owner is None:
        return []
    use = _RankUse(owner, log.allocations.of(*owner))
    parts = ", ".join(f"{phase['name']} {format_size(phase['bytes'])}" for phase in use.phases())
    return [
        f"in memory at the peak of rank {use.rank}, {format_size(use.peak_bytes)} at "
        f"{format_ns(use.peak_ps / 1000)}: {parts}"
    ]


def _highest(log: AllocationLog) -> tuple[int, int] | None:
    """Return the rank and the device with the highest peak, the first of equals."""
    known = dict(zip(FIELDS, log.columns(), strict=True))
    ranks, sips, begin, end, sizes = (
        _ints(known[name]) for name in ("rank", "sip_id", "begin", "end", "size_bytes")
    )
    if not len(ranks):
        return None
    num_sips = int(sips.max()) + 1
    owners = ranks * num_sips + sips
    freed = end != NEVER
    owners = np.concatenate([owners, owners[freed]])
    order = np.lexsort((np.concatenate([begin, end[freed]]), owners))
    owners, sizes = owners[order], np.concatenate([sizes, -sizes[freed]])[order]
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    in_use = np.cumsum(sizes)
    before = in_use[first] - sizes[first]
    peaks = np.maximum.reduceat(in_use, first) - before
    rank, sip_id = divmod(int(owners[first[np.argmax(peaks)]]), num_sips)
    return rank, sip_id


def _uses(log: OpLog, within: Window | None = None) -> list[_RankUse]:
    if log.allocations is None:
        raise UsageError(
            log.about(
                "this run has no record of its memory; run the program again with --save, or with "
                "record_memory=True"
            )
        )
    by_owner: dict[tuple[int, int], list[Allocation]] = {}
    for entry in log.allocations.entries:
        by_owner.setdefault((entry.rank, entry.sip_id), []).append(entry)
    if not by_owner:
        raise UsageError(log.about("nothing was allocated on a device in this run"))
    return [_RankUse(key, by_owner[key], within) for key in sorted(by_owner)]


def _ints(values: Sequence[int]) -> Column:
    return np.asarray(values, dtype=np.int64)


def _parts(alive: Sequence[Allocation], name: Callable[[Allocation], str]) -> list[PartReport]:
    part_reports: dict[str, PartReport] = {}
    for allocation in alive:
        key = name(allocation)
        part = part_reports.setdefault(key, {"name": key, "bytes": 0, "tensors": 0})
        part["bytes"] += allocation.asked_bytes
        part["tensors"] += 1
    return sorted(part_reports.values(), key=lambda part: (-part["bytes"], part["name"]))


def print_memory(memory_report: MemoryReport, console: Console) -> None:
    """Print the tables: ranks over time, then the peak by phase, module, line and tensor."""
    peak = memory_report["peak"]
    console.print("", fitting_table(console, _RANKS, _rank_rows(memory_report["ranks"])), sep="\n")
    console.print(
        Text(
            f"\nat the peak of rank {peak['rank']}: {format_size(peak['bytes'])} on device "
            f"{peak['device']} at {format_ns(peak['time_ns'])}"
        )
    )
    whole = peak["bytes"]
    for title, parts in (
        ("phase", peak["phases"]),
        ("module", peak["modules"]),
        (_LINES, peak["lines"]),
    ):
        columns = (
            TableColumn(title, is_number=False),
            TableColumn("tensors"),
            TableColumn("bytes"),
            TableColumn("share"),
        )
        rows = list(_part_rows(parts, whole))
        if title == _LINES:
            rows = [[_short(name), *rest] for name, *rest in rows]
        console.print("", fitting_table(console, columns, rows), sep="\n")
    console.print("", fitting_table(console, _TENSORS, _tensor_rows(peak)), sep="\n")
    if any(part_report["name"] == Phase.KV_CACHE for part_report in peak["phases"]):
        console.print(Text("\nKV cache is a guess, by the names of classes and buffers"))


_RANKS = (
    TableColumn("rank"),
    TableColumn("device", only_wide=True),
    TableColumn("peak"),
    TableColumn("at"),
    TableColumn("most of it", is_number=False, only_wide=True),
    TableColumn("over time"),
)


def _rank_rows(ranks: Sequence[RankMemory]) -> Iterator[list[str]]:
    for rank in ranks[:SHOWN_LINES]:
        most = rank["phases"][0]
        yield [
            str(rank["rank"]),
            str(rank["device"]),
            format_size(rank["peak_bytes"]),
            format_ns(rank["peak_ns"]),
            f"{most['name']} {format_share(most['bytes'], rank['peak_bytes'])}",
            _bars([size_bytes for _, size_bytes in rank["in_use"]]),
        ]
    rest = ranks[SHOWN_LINES:]
    if rest:
        yield [f"({len(rest)} more)", "", "", "", "", ""]


def _bars(sizes: Sequence[int]) -> str:
    """Return a curve in characters, each as high as the most that it stands for."""
    highest = max(sizes) or 1
    bounds = [number * len(sizes) // _NUM_BARS for number in range(_NUM_BARS + 1)]
    most = [max(sizes[a:b], default=0) for a, b in pairwise(bounds)]
    last = len(_BARS) - 1
    return "".join(_BARS[-(-number * last // highest)] for number in most)


def _part_rows(parts: Sequence[PartReport], whole: int) -> Iterator[list[str]]:
    for part in parts[:SHOWN_LINES]:
        share = format_share(part["bytes"], whole)
        yield [part["name"] or "(none)", str(part["tensors"]), format_size(part["bytes"]), share]
    rest = parts[SHOWN_LINES:]
    if rest:
        size_bytes = sum(part_report["bytes"] for part_report in rest)
        tensors = sum(part_report["tensors"] for part_report in rest)
        share = format_share(size_bytes, whole)
        yield [f"({len(rest)} more)", str(tensors), format_size(size_bytes), share]


_TENSORS = (
    TableColumn("tensor", is_number=False),
    TableColumn("shape", is_number=False),
    TableColumn("phase", is_number=False),
    TableColumn("allocated at", is_number=False, only_wide=True),
    TableColumn("bytes"),
)


def _tensor_rows(peak: PeakReport) -> Iterator[list[str]]:
    tensors = peak["tensors"]
    for tensor in tensors[:SHOWN_LINES]:
        place = f"{tensor['file']}:{tensor['line']}" if tensor["line"] else ""
        yield [
            tensor["name"],
            "x".join(map(str, tensor["shape"])),
            tensor["phase"],
            _short(place),
            format_size(tensor["bytes"]),
        ]
    rest = tensors[SHOWN_LINES:]
    if rest:
        size_bytes = sum(alive_report["bytes"] for alive_report in rest)
        yield [f"({len(rest)} more)", "", "", "", format_size(size_bytes)]


def _short(place: str) -> str:
    return place.rpartition("/")[2]
