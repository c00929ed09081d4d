"""Where the time of each rank went, by resource, and what had it: numbers for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernbench.analysis import Segment, Spent

MOST_USES = 40
MOST_PATH_SUMS = 15


def times(spent: Sequence[Spent], ranks: Sequence[int], path: Sequence[Segment]) -> dict[str, Any]:
    """Return the time of each rank by resource, its users, and what the critical path is made of.

    ``ranks`` are those that ran; their times are in this order.

    Everything is in picoseconds, so that the sums of the page are exact.
    """
    return {
        "ranks": list(ranks),
        **_by_rank(spent, ranks),
        **_uses(spent),
        "path": _path_sums(path),
        "num_segments": len(path),
    }


def _by_rank(spent: Sequence[Spent], ranks: Sequence[int]) -> dict[str, Any]:
    sums: dict[str, list[int]] = {}
    places = {rank: place for place, rank in enumerate(ranks)}
    for item in spent:
        sums.setdefault(item.resource, [0] * len(ranks))[places[item.rank]] += item.time_ps
    resources = sorted(sums, key=lambda name: (-sum(sums[name]), name))
    return {"resources": resources, "by_rank": [sums[name] for name in resources]}


def _uses(spent: Sequence[Spent]) -> dict[str, Any]:
    """Return what is behind the resources, the longest first: it adds up to the time of all."""
    sums: dict[tuple[str, str, str, str, int], int] = {}
    for entry in spent:
        key = (entry.name or entry.resource, entry.resource, entry.detail, *entry.site)
        sums[key] = sums.get(key, 0) + entry.time_ps
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    names = ("name", "resource", "detail", "file", "line")
    return {
        "uses": [
            {**dict(zip(names, key, strict=True)), "time_ps": time_ps}
            for key, time_ps in ordered[:MOST_USES]
        ],
        "num_uses": len(ordered),
        "rest_ps": sum(time_ps for _, time_ps in ordered[MOST_USES:]),
    }


def _path_sums(path: Sequence[Segment]) -> list[dict[str, Any]]:
    sums: dict[tuple[str, str], list[int]] = {}
    for segment in path:
        own = sums.setdefault((segment.name, segment.kind), [0, 0])
        own[0] += 1
        own[1] += segment.duration_ps
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    return [
        {"name": name, "kind": kind, "count": count, "time_ps": time_ps}
        for (name, kind), (count, time_ps) in ordered[:MOST_PATH_SUMS]
    ]
