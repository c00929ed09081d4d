"""What a run launched, copied, called and named, summed up by name as ``nsys stats`` does.

Source: the reports ``cuda_gpu_kern_sum``, ``cuda_gpu_mem_time_sum``, ``cuda_api_sum`` and
``nvtx_sum`` of Nsight Systems with ``--format csv``: their names and columns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING

from kernbench.errors import OutputError
from kernbench.outputs import Outputs, as_text

if TYPE_CHECKING:
    from kernbench.op_log import OpLog

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
    ranges = (
        (f":{host_range.name}", host_range.end_ps - host_range.start_ps)
        for host_range in log.host_ranges
    )
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
