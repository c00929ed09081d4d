"""What was in the memory of devices over time, by what it was for, and what at the peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis import memory_use
from kernbench.memory import NEVER, Allocation, Phase
from kernbench.op_log import Column
from kernbench.page.packing import packed

if TYPE_CHECKING:
    from kernbench.op_log import OpLog

BINS = 300
"""Parts of the run, in each of which the moment with the most bytes is shown."""
MOST_CURVES = 64
MOST_PARTS = 12
MOST_TENSORS = 25
_PHASES = tuple(Phase)


def memory(log: OpLog) -> dict[str, Any] | None:
    """Return the bytes in use over time by rank and phase, and the highest peak in parts.

    None: nothing was allocated. Without a record of it there are no curves, and ``is_recorded``
    is false.
    """
    if log.allocations is None:
        return {"is_recorded": False}
    by_owner: dict[tuple[int, int], list[Allocation]] = {}
    for entry in log.allocations.entries:
        by_owner.setdefault((entry.rank, entry.sip_id), []).append(entry)
    if not by_owner:
        return None
    use = memory_use(log)
    highest = sorted(use["ranks"], key=lambda rank_memory: -rank_memory["peak_bytes"])[:MOST_CURVES]
    end_ps = max(log.end_ps, 1)
    curves = [_curve(by_owner[memory["rank"], memory["device"]], end_ps) for memory in highest]
    peak = use["peak"]
    return {
        "is_recorded": True,
        "phases": [phase.value for phase in _PHASES],
        "bins": BINS,
        "owners": [
            {name: memory[name] for name in ("rank", "device", "peak_bytes", "peak_ns")}
            for memory in highest
        ],
        "num_owners": len(use["ranks"]),
        "in_use": packed({"bytes": np.concatenate(curves).ravel()}),
        "peak": {
            **{name: peak[name] for name in ("rank", "device", "bytes", "time_ns")},
            "phases": peak["phases"],
            "modules": peak["modules"][:MOST_PARTS],
            "lines": peak["lines"][:MOST_PARTS],
            "tensors": peak["tensors"][:MOST_TENSORS],
            "num_tensors": len(peak["tensors"]),
        },
    }


def _curve(entries: Sequence[Allocation], end_ps: int) -> Column:
    """Return the bytes by part of the run and phase, at each part's moment with the most."""
    freed = [entry for entry in entries if entry.end != NEVER]
    numbers = np.array([*(a.begin for a in entries), *(a.end for a in freed)])
    order = np.argsort(numbers)
    times_ps = np.array([*(a.begin_ps for a in entries), *(a.end_ps for a in freed)])[order]
    times_ps = np.maximum.accumulate(times_ps)
    sizes = np.array([*(a.size_bytes for a in entries), *(-a.size_bytes for a in freed)])[order]
    places = {phase: place for place, phase in enumerate(_PHASES)}
    phase = np.array([places[a.phase] for a in (*entries, *freed)])[order]
    total = np.concatenate([[0], np.cumsum(sizes)])
    stops = np.searchsorted(times_ps, np.linspace(0, end_ps, BINS + 1)[1:], side="right")
    stops[-1] = len(sizes)
    starts = np.concatenate([[0], stops[:-1]])
    # What is in use when a part begins, and after each event in it.
    parts = zip(starts.tolist(), stops.tolist(), strict=True)
    moments = np.array([start + int(np.argmax(total[start : stop + 1])) for start, stop in parts])
    curve = np.empty((BINS, len(_PHASES)), dtype=np.int64)
    for place in range(len(_PHASES)):
        of_phase = np.concatenate([[0], np.cumsum(np.where(phase == place, sizes, 0))])
        curve[:, place] = of_phase[moments]
    return curve
