"""What the report of a PyTorch program ends with."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from kernbench.torch_bridge.memory import shown

if TYPE_CHECKING:
    from kernbench.torch_bridge.session import Session


def remarks_of(session: Session) -> list[str]:
    """Return lines about the memory of ranks, and operations whose time is not well known.

    Ranks with equal needs share a line. Without data a call counts once for each of its shapes.
    """
    rows = []
    for (process, sip_id), allocator in session.memories.allocators.items():
        amounts = allocator.amounts
        peaks = amounts.allocated_bytes.peak, amounts.reserved_bytes.peak
        if peaks[1]:
            rows.append((*peaks, session.memories.device(sip_id).capacity_bytes, process.rank))
    rows.sort(key=lambda row: row[-1])
    lines = []
    for (allocated, reserved, capacity), group in groupby(rows, key=lambda row: row[:-1]):
        ranks = [row[-1] for row in group]
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}, each"
        lines.append(
            f"peak memory of {who}: {shown(allocated)} in tensors, {shown(reserved)} reserved of "
            f"{shown(capacity)}"
        )
    unknown = session.costs.unknown
    if unknown:
        named = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        lines.append(f"timed by their bytes alone, for their arithmetic is not known: {named}")
    return lines
