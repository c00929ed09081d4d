"""Everything that a page shows of a run, as one JSON object; a module beside this per section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernbench.analysis import (
    ALL,
    STARTUP,
    attribution,
    clipped,
    communication,
    critical_path,
    difference,
    part_of,
)
from kernbench.hardware import leaves
from kernbench.op_log import build_spans, find_steps, range_names
from kernbench.page.energy import energy
from kernbench.page.kernels import MOST_KERNELS, kernels
from kernbench.page.lanes import timeline
from kernbench.page.memory import memory
from kernbench.page.times import times
from kernbench.report import accuracy_line, kernels_within

if TYPE_CHECKING:
    from kernbench.analysis import RunPart, Segment
    from kernbench.saved import SavedRun


_MOST_PARTS = 16
_MOST_LOOKS = 400_000
"""How many commands all parts of a run may have together: each of them is looked at for each."""


def contents(
    run: SavedRun,
    before: SavedRun | None = None,
    findings: Mapping[str, Any] | None = None,
    part: RunPart | None = None,
) -> dict[str, Any]:
    """Return what the page of a run shows.

    Args:
        run: The run.
        before: Another one; then also what changed since that.
        findings: What ``kernbench.retiming.findings`` returned for the run.
        part: The part of the run that is shown first; None: the steady step, if it has steps.
    """
    log = run.log
    path = critical_path(log)
    spent = attribution(log, run.machine, run.ranks)
    result: dict[str, Any] = {
        "about": _about(run),
        "findings": findings,
        "times": times(spent, log.ranks_of(run.ranks), path),
        **_parts(run, path, part),
        "timeline": timeline(log, run.machine, path),
        "kernels": kernels(run),
        "collectives": run.report["collectives"],
        "communication": communication(log, run.ranks) if log.running is None else None,
        "memory": memory(log),
        "energy": energy(run),
        "serving": run.report.get("serving"),
        "machine": _machine(run),
        "changes": None,
    }
    if before is not None:
        result["changes"] = {**difference(before, run), "before_about": _about(before)}
    return result


def _parts(run: SavedRun, path: Sequence[Segment], part: RunPart | None) -> dict[str, Any]:
    """Return the parts of a run that a reader can choose, and the number of the first one shown.

    These are the whole run, what was asked for, its steady step and the others, and its ranges.
    """
    log = run.log
    first = part_of(log) if part is None else part
    steps = find_steps(log) if log.host_ranges else None
    names = [] if steps is None else [STARTUP, *(step.name for step in steps.steps)]
    names += [range_name for range_name in range_names(log) if range_name not in names]
    known = {name: part_of(log, name) for name in names[: _most_parts(run)]}
    chosen = {ALL: part_of(log, ALL), **known, first.name: first}
    spans = build_spans(log)
    values = []
    for item in chosen.values():
        window = item.window
        shown: dict[str, Any] = {"name": item.name, "time_ps": log.end_ps, "from_ps": 0}
        if window is not None:
            edges = [edge for rank in window.ranks for i in window.intervals(rank) for edge in i]
            if not edges:
                continue
            spent = attribution(log, run.machine, run.ranks, window)
            launched = kernels_within(spans, run.machine, window)
            shown |= {
                "time_ps": window.mean_ps,
                "from_ps": min(edges),
                "to_ps": max(edges),
                "said": item.said,
                "times": times(spent, log.ranks_of(run.ranks), clipped(path, window)),
                "kernels": launched[:MOST_KERNELS],
                "num_kernels": len(launched),
            }
        values.append(shown)
    at = next((n for n, entry in enumerate(values) if entry["name"] == first.name), 0)
    return {"parts": values, "part": at}


def _most_parts(run: SavedRun) -> int:
    return min(_MOST_PARTS, _MOST_LOOKS // (len(run.log) + len(run.log.host_spans) + 1))


def _about(run: SavedRun) -> dict[str, Any]:
    accuracy = run.report.get("accuracy")
    return {
        "path": run.path,
        "program": run.program,
        "machine": run.machine.name,
        "topology": run.machine.topology,
        "num_sips": run.machine.num_sips,
        "ranks": run.ranks,
        "time_ps": run.log.end_ps,
        "launches": len(run.log),
        "wall_s": run.report.get("wall_s"),
        "version": run.version,
        "remarks": list(run.report.get("remarks", ())),
        "accuracy": accuracy_line(accuracy) if accuracy else "",
    }


def _machine(run: SavedRun) -> dict[str, Any]:
    spec = run.machine.spec
    rows = leaves(spec.model_dump(mode="json", exclude_defaults=True))
    return {
        "name": spec.name,
        "description": spec.description,
        "keys": [[key, str(value)] for key, value in rows if key not in ("name", "description")],
    }
