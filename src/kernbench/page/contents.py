"""Everything that a page shows of a run, as one JSON object, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis import (
    ALL,
    STARTUP,
    KernelLines,
    RunPart,
    Segment,
    Spent,
    attribution,
    clipped,
    communication,
    critical_path,
    difference,
    lines_of_kernels,
    memory_use,
    part_of,
    program_modules,
    shown_lines,
    shown_modules,
)
from kernbench.hardware import leaves
from kernbench.memory import NEVER, Allocation, Phase
from kernbench.op_log import (
    Column,
    OpLog,
    Template,
    Window,
    build_spans,
    energy_of,
    find_steps,
    power_over_time,
    range_names,
)
from kernbench.page.lanes import timeline
from kernbench.page.packing import packed
from kernbench.report import accuracy_line, kernels_within

if TYPE_CHECKING:
    from kernbench.saved import SavedRun


MOST_KERNELS = 200
"""The most kernels of a page, those with the most time; it says how many there are besides."""
MOST_WITH_LINES = 60
_MATRIX_PEAKS = ("float8_e4m3fn", "float16", "tf32", "float32")
"""Element types whose peak rates are drawn as roofs, where the machine has them."""


def kernels(run: SavedRun) -> dict[str, Any]:
    """Return the kernels by time, and the lines of those that take the most."""
    listed = run.report["kernels"]
    lines = lines_of_kernels(run.log, [item["name"] for item in listed[:MOST_WITH_LINES]])
    by_name = {kernel_lines["kernel"]: kernel_lines for kernel_lines in lines}
    launched = _launched_with(run)
    return {
        "num_kernels": len(listed),
        "kernels": [
            {
                **item,
                "files": _files(by_name.get(item["name"]), run.sources),
                "with": launched.get(item["name"], {}),
            }
            for item in listed[:MOST_KERNELS]
        ],
        "roofs": _roofs(run),
    }


_ABOUT = {
    "grid": "grid",
    "num_warps": "warps of a program",
    "spilled_registers": "registers of a thread that are spilled, as an estimate",
    "shapes": "shapes",
    "dtypes": "element types",
}


def _launched_with(run: SavedRun) -> dict[str, dict[str, str]]:
    """Return what the longest launch of each kernel was launched with, in words."""
    longest: dict[str, Template] = {}
    for instance in run.log.instances:
        template = instance.template
        before = longest.get(template.name)
        if before is None or before.duration_ps < template.duration_ps:
            longest[template.name] = template
    return {
        name: {
            said: str(value.launched_with[key])
            for key, said in _ABOUT.items()
            if key in value.launched_with
        }
        | _occupancy(run, value)
        for name, value in longest.items()
    }


def _occupancy(run: SavedRun, template: Template) -> dict[str, str]:
    """Return how full a PE is of the warps of a kernel, where it counts warps."""
    warps, resident = run.machine.sip.pe.warps, template.launched_with.get("resident_programs")
    if warps is None or not resident:
        return {}
    share = resident * template.launched_with["num_warps"] / warps.resident
    return {"programs of a PE at a time": str(resident), "occupancy": f"{round(100 * share)} %"}


def _files(kernel_lines: KernelLines | None, sources: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the files of a kernel, the one with the most time first, with the lines to show."""
    by_file: dict[str, dict[int, Any]] = {}
    for line_report in kernel_lines["lines"] if kernel_lines else ():
        by_file.setdefault(line_report["file"], {})[line_report["line"]] = line_report
    ordered = sorted(by_file, key=lambda file: -sum(x["time_ns"] for x in by_file[file].values()))
    return [_file(file, by_file[file], sources.get(file, "")) for file in ordered]


def _file(file: str, lines: Mapping[int, Any], source: str) -> dict[str, Any]:
    text = source.splitlines()
    shown = []
    for number in shown_lines(lines, source):
        line: dict[str, Any] = {"line": number}
        if number < 0:
            shown.append(line)  # some are left out
            continue
        line["text"] = text[number - 1] if 0 < number <= len(text) else ""
        if number in lines:
            wanted = ("engine", "time_ns", "busy_ns", "bytes", "flops")
            line |= {name: lines[number][name] for name in wanted}
        shown.append(line)
    return {"file": file, "has_source": bool(text), "lines": shown}


def _roofs(run: SavedRun) -> dict[str, Any]:
    """Return the peak rates of one SIP: matrix products by element type, HBM, the cache."""
    sip = run.machine.sip
    rates = sip.pe.gemm.flops_per_clock
    shown = [name for name in _MATRIX_PEAKS if name in rates] or sorted(rates)[:1]
    roofs: dict[str, Any] = {
        "matrix": [
            {"dtype": name, "flops_per_ns": float(sip.peak_flops_per_s(name) / 10**9)}
            for name in shown
        ],
        "hbm_bytes_per_ns": float(sip.cube.hbm_bandwidth_gbps * sip.num_cubes),
        "cache_bytes_per_ns": None,
        "num_pes": sip.num_pes,
    }
    if sip.cache is not None:
        roofs["cache_bytes_per_ns"] = float(sip.cache.bandwidth_gbps)
    return roofs


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


"""Parts of the run, each with its mean power."""
MOST_USES = 40


def energy(run: SavedRun) -> dict[str, Any] | None:
    """Return the energy of a run, and the power of a device over time: mean, least, most of all.

    None: the run's machine says nothing of energy, or the run was saved without.
    """
    energy_report = energy_of(run.log, run.machine, run.ranks)
    is_counted = any(instance.template.energy_pj for instance in run.log.instances)
    if energy_report is None or not is_counted:
        return None
    edges = np.linspace(0, run.log.end_ps, BINS + 1)
    rows = []
    curves = power_over_time(run.log, run.machine, run.ranks)
    for times_ps, watts in map(curves.__getitem__, run.log.ranks_of(run.ranks)):
        drawn = np.concatenate([[0.0], np.cumsum(np.diff(times_ps) * watts[:-1])])
        rows.append(np.diff(np.interp(edges, times_ps, drawn)) / np.diff(edges))
    by_rank = np.stack(rows)
    milliwatts = {
        name: np.rint(values * 1000).astype(np.int64)
        for name, values in (
            ("mean", by_rank.mean(axis=0)),
            ("least", by_rank.min(axis=0)),
            ("most", by_rank.max(axis=0)),
        )
    }
    power = run.machine.sip.power
    return {
        **{name: energy_report[name] for name in ("energy_j", "average_w", "parts_j")},
        "uses": energy_report["uses"][:MOST_USES],
        "num_uses": len(energy_report["uses"]),
        "peak_w": max(rank_energy["peak_w"] for rank_energy in energy_report["per_rank"]),
        "board_w": None if power is None else float(power.board_w),
        "bins": BINS,
        "milliwatts": packed(milliwatts),
    }


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
    most = min(_MOST_PARTS, _MOST_LOOKS // (len(log) + len(log.host_spans) + 1))
    known = {name: part_of(log, name) for name in names[:most]}
    chosen = {ALL: part_of(log, ALL), **known, first.name: first}
    spans = build_spans(log)
    values = []
    for item in chosen.values():
        window = item.window
        shown: dict[str, Any] = {"name": item.name, "time_ps": log.end_ps, "from_ps": 0}
        if window is None:
            shown["modules"] = _modules(run, window, path)
        else:
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
                "modules": _modules(run, window, clipped(path, window)),
                "kernels": launched[:MOST_KERNELS],
                "num_kernels": len(launched),
            }
        values.append(shown)
    at = next((n for n, entry in enumerate(values) if entry["name"] == first.name), 0)
    return {"parts": values, "part": at}


def _modules(run: SavedRun, window: Window | None, path: Sequence[Segment]) -> list[dict[str, Any]]:
    """Return the modules of a program as a tree; none where they are not known."""
    if run.log.program_lines is None or not any(run.log.program_lines.modules):
        return []
    report = program_modules(run.log, run.ranks, window, path)
    return [{**row, "depth": depth, "name": name} for depth, name, row in shown_modules(report)]


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
