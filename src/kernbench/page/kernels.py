"""The kernels of a run: their time, their lines with sources, and the peaks above them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernbench.analysis import KernelLines, lines_of_kernels, shown_lines

if TYPE_CHECKING:
    from kernbench.op_log import Template
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
        for name, value in longest.items()
    }


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
