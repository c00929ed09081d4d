"""What the report of a PyTorch program ends with."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from kernbench.torch_bridge.memory import shown

if TYPE_CHECKING:
    from kernbench.torch_bridge.session import Session


def remarks_of(session: Session) -> list[str]:
    """Return lines about the memory of ranks, and operations whose time is not well known.

    Ranks whose needs look the same share a line. Without data a call counts once for each of its
    shapes.
    """
    rows: list[tuple[int, str]] = []
    for (process, sip_id), allocator in session.memories.allocators.items():
        amounts = allocator.amounts
        peaks = amounts.allocated_bytes.peak_of_run, amounts.reserved_bytes.peak_of_run
        if peaks[1]:
            capacity = session.memories.device(sip_id).capacity_bytes
            needs = f"{shown(peaks[0])} in tensors, {shown(peaks[1])} reserved of {shown(capacity)}"
            rows.append((process.rank, needs))
    lines = []
    for needs, group in groupby(sorted(rows), key=itemgetter(1)):
        ranks = [rank for rank, _ in group]
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}, each"
        lines.append(f"peak memory of {who}: {needs}")
    unknown = session.costs.unknown
    if unknown:
        named = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        lines.append(f"timed by their bytes alone, for their arithmetic is not known: {named}")
    return lines
