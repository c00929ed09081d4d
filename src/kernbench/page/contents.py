"""Everything that a page shows of a run, as one JSON object; a module beside this per section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernbench.analysis import attribution, communication, critical_path, difference
from kernbench.hardware import leaves
from kernbench.page.energy import energy
from kernbench.page.kernels import kernels
from kernbench.page.lanes import timeline
from kernbench.page.memory import memory
from kernbench.page.times import times
from kernbench.report import accuracy_line

if TYPE_CHECKING:
    from kernbench.saved import SavedRun


def contents(
    run: SavedRun, before: SavedRun | None = None, findings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what the page of a run shows.

    Args:
        run: The run.
        before: Another one; then also what changed since that.
        findings: What ``kernbench.retime.findings`` returned for the run.
    """
    log = run.log
    path = critical_path(log)
    spent = attribution(log, run.machine, run.ranks)
    found: dict[str, Any] = {
        "about": _about(run),
        "findings": findings,
        "times": times(spent, log.ranks_of(run.ranks), path),
        "timeline": timeline(log, run.machine, path),
        "kernels": kernels(run),
        "collectives": run.report["collectives"],
        "communication": communication(log, run.ranks) if log.running is None else None,
        "memory": memory(log),
        "energy": energy(run),
        "machine": _machine(run),
        "changes": None,
    }
    if before is not None:
        found["changes"] = {**difference(before, run), "before_about": _about(before)}
    return found


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
