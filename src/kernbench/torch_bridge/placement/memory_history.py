"""What a program has asked to be recorded of its memory, as ``torch.cuda.memory`` has it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from types import FrameType
from typing import Any, Literal

from kernbench.torch_bridge.memory import CachingAllocator, MemoryBlock
from kernbench.torch_bridge.memory.allocator import CallFrame, SegmentAction
from kernbench.torch_bridge.placement.call_stacks import frames_of
from kernbench.torch_bridge.processes.process import Process

Context = Literal["state", "alloc", "all"] | None


class History:
    """The events of a process's allocators, with stacks of calls."""

    def __init__(
        self,
        process: Process,
        *,
        keeps_events: bool,
        context: Context,
        most: int | None,
        skipped: Collection[str] = (),
        before: History | None = None,
    ) -> None:
        self._process = process
        self._keeps_events = keeps_events
        self._context = context
        self._most = most
        self._skipped = frozenset(skipped)
        self._events: dict[CachingAllocator, deque[dict[str, Any]]] = {}
        self.is_on = True
        if before is not None:
            for allocator, events in before._events.items():
                self._events[allocator] = deque(events, maxlen=most)

    def allocated(self, block: MemoryBlock, frame: FrameType) -> None:
        """Keep that a block is in use."""
        if not self.is_on:
            block.frames = ()
            return
        block.frames = () if self._context is None else tuple(frames_of(frame))
        kept = block.frames if self._context in ("alloc", "all") else ()
        self._keep("alloc", block, block.asked_bytes, kept)

    def freed(self, block: MemoryBlock, frame: FrameType) -> None:
        """Keep that a block is not in use any more."""
        if self._keeps_events and self.is_on:
            kept = tuple(frames_of(frame)) if self._context == "all" else ()
            self._keep("free_requested", block, block.asked_bytes, kept)
            self._keep("free_completed", block, block.asked_bytes, kept)

    def segment(self, action: SegmentAction, block: MemoryBlock, frame: FrameType) -> None:
        """Keep that the device has given a segment, or has it back."""
        if not self.is_on:
            return
        kept = tuple(frames_of(frame)) if self._context in ("alloc", "all") else ()
        self._keep(action, block, block.size, kept)

    def _keep(
        self, action: str, block: MemoryBlock, size_bytes: int, frames: tuple[CallFrame, ...]
    ) -> None:
        if not (self._keeps_events and self.is_on) or action in self._skipped:
            return
        events = self._events.get(block.owner)
        if events is None:
            events = self._events[block.owner] = deque(maxlen=self._most)
        events.append(
            {
                "action": action,
                "addr": address_of(block),
                "size": size_bytes,
                "stream": stream_of(block),
                "pool_id": pool_of(block),
                "time_us": self._process.host.paid_ps // 10**6,
                "frames": frames,
            }
        )

    def events_of(self, allocator: CachingAllocator) -> list[dict[str, Any]]:
        """Return the events of an allocator, as entries of ``device_traces``."""
        return [
            {**values, "frames": shown(values["frames"])}
            for values in self._events.get(allocator, ())
        ]


_FIRST_ADDRESS = 0x7F0000000000
"""Where snapshots have an allocator's first segment: it counts from 0, which means nothing."""


def address_of(block: MemoryBlock) -> int:
    """Return the address of a block in a snapshot."""
    return _FIRST_ADDRESS + block.address


def stream_of(block: MemoryBlock) -> int:
    """Return the number of a block's stream; 0 is the default one, and that of graphs' pools."""
    stream = block.pool[0]
    # Queues are named by their device and, but for the default one, a number.
    return int(stream.queue.name.partition(".")[2] or 0) if hasattr(stream, "queue") else 0


def pool_of(block: MemoryBlock) -> tuple[int, int]:
    """Return the id of the pool of a CUDA graph; (0, 0) for others."""
    return getattr(block.pool[0], "handle", (0, 0))


def shown(frames: Collection[CallFrame]) -> list[dict[str, Any]]:
    """Return calls as snapshots have them."""
    return [{"filename": file, "line": line, "name": name} for file, line, name in frames]
