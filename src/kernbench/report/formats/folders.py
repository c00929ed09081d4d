"""Exports of a run that are a file per rank, in one folder."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any, BinaryIO

from kernbench.errors import OutputError, UsageError
from kernbench.hardware import Machine
from kernbench.op_log import OpLog
from kernbench.outputs import Outputs, as_text
from kernbench.report.formats.chakra import write_chakra
from kernbench.report.formats.kineto import write_kineto
from kernbench.report.formats.rank_view import RankView, process_groups, rank_views

_TIMES = ("Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)")
_CALLS = {"launch": "cudaLaunchKernel", "allocate": "cudaMalloc", "wait": "cudaStreamSynchronize"}
"""What a profiler calls host spans; others are no calls of CUDA."""
_Named = tuple[str, int]
"""A name and a time in ps."""


def write_statistics(log: OpLog, folder: Path | str) -> list[Path]:
    """Write the sums as tables of values that commas separate; return their paths.

    Collectives are kernels, as NCCL's are.

    Raises:
        OutputError: They cannot be written.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; name a folder, in which each table has a file")
    tables = {
        folder / f"{name}.csv": (count, (*styles, title), list(values))
        for name, count, styles, title, values in _tables(log)
    }
    asked = {str(path): str(path) for path in tables}
    with Outputs(asked) as outputs:
        for path, (count, named, values) in tables.items():
            with outputs.writing(str(path)) as out, as_text(out) as text:
                rows = csv.writer(text, lineterminator="\n")
                rows.writerow(("Time (%)", "Total Time (ns)", count, *_TIMES, *named))
                rows.writerows(_rows(values, len(named) > 1))
        outputs.publish()
    return list(tables)


def _tables(log: OpLog) -> Iterator[tuple[str, str, tuple[str, ...], str, Iterable[_Named]]]:
    """Yield names of reports, what their counts and names are called, and what they sum up."""
    device = [
        (instance.template, end_ps - start_ps)
        for instance in log.instances
        for start_ps, end_ps in zip(instance.starts_ps, instance.ends_ps, strict=True)
    ]
    runs = ("kernel", "collective")
    kernels = ((template.name, ps) for template, ps in device if template.kind in runs)
    copies = ((template.name, ps) for template, ps in device if template.kind not in runs)
    calls = (
        (_CALLS[span.kind], span.end_ps - span.start_ps)
        for span in log.host_spans
        if span.kind in _CALLS
    )
    ranges = ((f":{item.name}", item.end_ps - item.start_ps) for item in log.host_ranges)
    yield "cuda_gpu_kern_sum", "Instances", (), "Name", kernels
    yield "cuda_gpu_mem_time_sum", "Count", (), "Operation", copies
    yield "cuda_api_sum", "Num Calls", (), "Name", calls
    yield "nvtx_sum", "Instances", ("Style",), "Range", ranges


def _rows(values: Iterable[_Named], has_style: bool) -> Iterator[list[object]]:
    """Yield a row for each name, the longest first."""
    by_name: dict[str, list[float]] = {}
    for name, time_ps in values:
        by_name.setdefault(name, []).append(time_ps / 1000)
    whole = sum(map(sum, by_name.values()))
    for name, times in sorted(by_name.items(), key=lambda pair: (-sum(pair[1]), pair[0])):
        numbers = (fmean(times), median(times), min(times), max(times), pstdev(times))
        share = f"{100 * sum(times) / whole:.1f}" if whole else "0.0"
        rounded = (f"{number:.1f}" for number in numbers)
        style = ["PushPop"] if has_style else []
        yield [share, round(sum(times)), len(times), *rounded, *style, name]


GROUPS = "comm_groups.json"
"""The ranks of each process group, beside Chakra's traces."""


def write_profiles(log: OpLog, machine: Machine, world_size: int, folder: Path | str) -> list[Path]:
    """Write a file per rank as PyTorch's profiler does, compressed; return their paths.

    Raises:
        OutputError: They cannot be written, or the folder holds a rank that this run does not have.
        UsageError: The run has done nothing.
    """
    groups = process_groups(log)

    def write(view: RankView, out: BinaryIO) -> None:
        # Without a name and a time, equal runs are equal bytes.
        packed: Any = gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0)
        with packed, as_text(packed) as text:
            write_kineto(view, machine, groups, world_size, text)

    return _write_ranks(log, Path(folder), "rank{}.pt.trace.json.gz", write)


def write_execution_traces(
    log: OpLog, machine: Machine, world_size: int, folder: Path | str
) -> list[Path]:
    """Write an execution trace of Chakra per rank, and the process groups; return the paths.

    Raises:
        OutputError: They cannot be written, or the folder holds a rank that this run does not have.
        UsageError: The run has done nothing, or something that Chakra has no node for.
    """
    groups = process_groups(log)

    def write(view: RankView, out: BinaryIO) -> None:
        write_chakra(view, groups, world_size, out)

    members = {name: list(ranks) for ranks, name in groups.items()}
    return _write_ranks(log, Path(folder), "run.{}.et", write, {GROUPS: members})


def _write_ranks(
    log: OpLog,
    folder: Path,
    pattern: str,
    write: Callable[[RankView, BinaryIO], None],
    more: Mapping[str, Any] | None = None,
) -> list[Path]:
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; name a folder, in which each rank has a file")
    views = rank_views(log)
    if not views:
        raise UsageError("the run has launched nothing: there is no rank to write a file for")
    paths = {folder / pattern.format(view.rank): view for view in views}
    alike = re.compile(r"\d+".join(map(re.escape, pattern.split("{}"))))
    there = folder.iterdir() if folder.exists() else ()
    others = sorted(path.name for path in there if alike.fullmatch(path.name) and path not in paths)
    if others:
        raise OutputError(
            f"{folder} holds {others[0]} of another run, which readers would take for one of this "
            "run's ranks; name another folder"
        )
    asked = {str(path): str(path) for path in [*paths, *(folder / name for name in more or ())]}
    with Outputs(asked) as outputs:
        for path, view in paths.items():
            with outputs.writing(str(path)) as out:
                write(view, out)
        for name, value in (more or {}).items():
            with outputs.writing(str(folder / name)) as out:
                out.write(f"{json.dumps(value, indent=1)}\n".encode())
        outputs.publish()
    return list(paths)
