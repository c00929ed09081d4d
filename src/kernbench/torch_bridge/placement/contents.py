"""What the sanitizer knows of the memory of PyTorch's tensors: who touched it, what is unwritten.

It is an attribute of the storage. When the storage dies, what is not certainly over stays with the
addresses that its block of the device's memory had, for whoever gets them next (ADR-0228).
"""

from __future__ import annotations

from bisect import bisect_left
from sys import _getframe
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernbench.checks import Allowed, remedy
from kernbench.clock import UserSite, known_owner
from kernbench.sanitizer import Touch, Touches
from kernbench.torch_bridge.processes.python_calls import IN_THREAD

if TYPE_CHECKING:
    from types import FrameType

    from kernbench.torch_bridge.memory import CachingAllocator
    from kernbench.torch_bridge.ordering.order import OrderedLine, ProcessOrder

    Place = tuple[CachingAllocator, int, int]

Written = npt.NDArray[np.uint8]


class Contents:
    """The touches of one storage, and which of its bytes are written."""

    __slots__ = (
        *("_order", "_place", "_recorded", "is_followed", "is_shared", "lost", "touches"),
        "written",
    )

    def __init__(self, order: ProcessOrder, place: Place | None) -> None:
        self._order = order
        self._place = place
        """The allocator, address and size of its block; None for memory of the host."""
        self._recorded: dict[int, OrderedLine] = {}
        self.touches = Touches()
        self.written: Written | None = None
        """For memory that began uninitialized: not 0 where something wrote. None: all of it."""
        self.is_followed = False
        """Whether all writes are known: what is unwritten was moved here, so is no poison."""
        self.lost = ""
        """What has overwritten the bytes that count as unwritten, if anything has."""
        self.is_shared = False
        """Whether several processes use it: what orders those is not known."""
        if place is not None:
            _inherit(order, self.touches, place)

    def add(self, touch: Touch, label: str) -> None:
        """Take note of a touch.

        Raises:
            DataRaceError: It is unordered with an earlier one, and one of the two writes.
        """
        if self._order.finds_races and not self.is_shared:
            self.touches.add(touch, label)

    def share(self, touches: Touches) -> None:
        """Count its touches among those of whoever else has its addresses."""
        self.touches, self._place = touches, None

    def record(self, line: OrderedLine) -> None:
        """Note that the allocator gives the memory out when a stream has gone on."""
        self._recorded[line.number] = line

    def __del__(self) -> None:
        """Leave what is not over to whoever gets the memory next; calls no Python function."""
        # Missing if an interrupt came before it was set.
        place = getattr(self, "_place", None)
        if place is not None and not self.is_shared:
            frame: FrameType | None = _getframe(1)
            while frame is not None and known_owner(frame.f_code.co_filename) != "":
                frame = frame.f_back
            site = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
            order = self._order
            # What recorded streams follow has ended as well, when they have gone on.
            known = [order.host.known]
            for line in self._recorded.values():
                known.append(line.known)  # noqa: PERF401 - a comprehension is a function
            order.freed.append((place, self.touches, self._recorded, known, site))
        calls = IN_THREAD.calls
        if calls is not None and calls.is_on:
            # On a GPU, C++ frees memory.
            calls.of_process.num_own += 1


def contents_of(order: ProcessOrder, storage: Any, *, is_pinned: bool = False) -> Contents | None:
    """Return what is known of a storage's memory; None for the host's that is not pinned.

    With ``is_pinned`` it is for other memory of the host, too.
    """
    contents: Contents | None = getattr(storage, "_kernbench_contents", None)
    if contents is not None:
        contents.is_shared |= contents._order is not order
        return contents
    residence = getattr(storage, "_kernbench", None)
    if residence is None or residence.device is None:
        if not (is_pinned or getattr(storage, "_kernbench_pinned", False)):
            return None
        place = None
    elif residence.block is None:
        return None
    else:
        place = (residence.block.owner, residence.block.address, residence.block.size)
    contents = storage._kernbench_contents = Contents(order, place)
    return contents


def forget_contents(storage: Any) -> None:
    """Let a storage's memory go, which has none or other memory now."""
    contents: Contents | None = getattr(storage, "_kernbench_contents", None)
    if contents is not None:
        storage._kernbench_contents = None


class FreedMemory:
    """The touches of freed memory by address, in ranges that do not overlap."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._ranges: list[tuple[int, list[Touch]]] = []
        """The starts of the same ranges, and touches counted from address 0."""

    def add(self, start: int, end: int, touches: list[Touch]) -> None:
        """Keep touches of a range, in place of what was known of it."""
        self.take(start, end)
        at = bisect_left(self._ends, end)
        self._ends.insert(at, end)
        self._ranges.insert(at, (start, touches))

    def take(self, start: int, end: int) -> list[Touch]:
        """Return the touches of a range, which is in use again; they are forgotten here."""
        first = bisect_left(self._ends, start + 1)
        last = first
        values: dict[Touch, None] = {}
        rest: list[tuple[int, int, list[Touch]]] = []
        while last < len(self._ends) and self._ranges[last][0] < end:
            begin, touches = self._ranges[last]
            values.update(dict.fromkeys(touches))
            if begin < start:
                rest.append((begin, start, touches))
            if self._ends[last] > end:
                rest.append((end, self._ends[last], touches))
            last += 1
        self._ends[first:last] = [stop for _, stop, _ in rest]
        self._ranges[first:last] = [(begin, touches) for begin, _, touches in rest]
        return list(values)


def _inherit(order: ProcessOrder, touches: Touches, place: Place) -> None:
    """Begin the touches of new memory with those of who had it before."""
    freed = order.freed_memory
    while order.freed:
        (owner, address, size), before, recorded, known, site = order.freed.popleft()
        left = [
            touch
            for touch in (before if order.has_streams else ())
            if touch.clock.index > max(item.get(touch.clock.timeline, -1) for item in known)
            and touch.clock.timeline not in recorded
        ]
        if not left:
            continue
        memory = freed.get(owner)
        if memory is None:
            memory = freed[owner] = FreedMemory()
        moved = []
        for touch in left:
            line = touch.clock.line
            if line.is_channel and not order.is_awaited(touch.clock):
                # The group holds its tensors until somebody waits, or it has ended.
                continue
            advice = (
                f"that memory was freed at {UserSite(*site)}, and the allocator gave it out again, "
                f"as it knows nothing of {line.name}: call record_stream() of the tensor with that "
                "stream, or let the stream that it was allocated on wait before it is freed, "
                f"{remedy(Allowed.STREAM_RACES)}"
            )
            moved.append(touch.moved(address, advice))
        memory.add(address, address + size, moved)
    owner, address, size = place
    memory = freed.get(owner)
    if memory is not None:
        for touch in memory.take(address, address + size):
            touches.keep(touch.moved(-address, touch.freed))
