"""Under the sanitizer: the addresses of a pool of graphs, which several owners have in turn.

Within a capture the allocator gives memory out again that the program has dropped, and graphs of
one pool have the same addresses (ADR-0228).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kernbench.checks import Allowed, remedy
from kernbench.clock import user_site
from kernbench.memory import POISON, Buffer
from kernbench.sanitizer import Touch, Touches, TouchKind
from kernbench.torch_bridge.memory import PrivatePool
from kernbench.torch_bridge.ordering.order import ProcessOrder
from kernbench.torch_bridge.placement.contents import Contents
from kernbench.torch_bridge.placement.touched import bytes_of

Address = tuple[Any, int, int]
"""An allocator, an address of its, and the size of the block there."""
_SHARED = (
    "the graphs' pool gives that memory out more than once: call record_stream() of a tensor of "
    "the capture with the stream that uses it, or let the stream that it was allocated on wait, "
    "before it is dropped; replay graphs that share a pool one after another, "
    f"{remedy(Allowed.STREAM_RACES)}"
)


class PoolTouches(Touches):
    """The touches of one allocation of a pool, among those of all who have its addresses."""

    def __init__(self, pool: Touches, start: int) -> None:
        super().__init__()
        self._pool, self._start = pool, start
        self.outputs: list[tuple[int, StorageWeakRef]] = []
        """What graphs that were captured later return in this memory, with its address."""

    def add(self, touch: Touch, label: Buffer | str, start: int = 0) -> None:
        """Record a touch; what another graph has returned in these bytes is lost if it writes.

        Raises:
            DataRaceError: As :meth:`Touches.add`, whoever has the memory.
        """
        start += self._start
        touch = touch.moved(start, _SHARED, self)
        self._pool.add(touch, label, start)
        if touch.kind is not TouchKind.READ:
            for address, output in self.outputs:
                _lose(touch, address, output)


def _lose(touch: Touch, address: int, output: StorageWeakRef) -> None:
    """Poison the bytes of a graph's result that a replay of another one has written."""
    storage = torch.UntypedStorage._new_with_weak_ptr(output.cdata)
    contents: Contents | None = getattr(storage, "_kernbench_contents", None)
    if contents is None:
        return
    if contents.written is None:
        contents.written = np.full(storage.nbytes(), 255, np.uint8)
    memory = bytes_of(storage)
    for part in touch.parts:
        for low, high in np.clip(part.spans() - address, 0, len(memory)).tolist():
            memory[low:high], contents.written[low:high] = POISON, 0
    contents.lost = (
        f"a replay of another graph of its pool has overwritten at {user_site()}; replay "
        "graphs that share a pool in the order of their captures, use or copy results before that"
    )


def share(
    pool: PrivatePool, order: ProcessOrder, places: Iterable[tuple[Address | None, Any, bool]]
) -> None:
    """Let what replays do to storages of a capture meet what others do at the same addresses.

    ``places`` has the address of each storage, None if nobody else gets that, and whether it is
    one that the program has.
    """
    older = {owner: list(known[1]) for owner, known in pool.shared.items()}
    for address, storage, is_output in places:
        contents = getattr(storage, "_kernbench_contents", None)
        if contents is None:
            contents = storage._kernbench_contents = Contents(order, None)
        if address is None:
            continue
        owner, start, size = address
        touches, ranges = pool.shared.setdefault(owner, (Touches(), []))
        own = PoolTouches(touches, start)
        contents.share(own)
        ranges.append((start, start + size, own))
        if is_output and order.finds_unwritten:
            for low, high, its in older.get(owner, ()):
                if low < start + size and start < high:
                    its.outputs.append((start, StorageWeakRef(storage)))
