"""Measurements as CSV rows with the columns that ``kernbench validate`` reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from kernbench.accuracy.measurement.campaign import Measured
from kernbench.accuracy.measurement.shapes import GemmShape, RowShape
from kernbench.outputs import Outputs, whole_file

_HEAD = ("device", "op", "dtype")
_TAIL = ("n_ranks", "bytes", "time_us", "tflops", "gbps", "impl", "n_runs", "spread_pct",
         "clock_mhz", "source")  # fmt: skip
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_STREAMS = {"add": 3, "mul": 3, "silu_mul": 3, "add_rmsnorm": 4}
"""The number of tensors that an operation reads and writes; 2 for those not listed."""


def write_rows(
    folder: str | Path, device: str, measured: Iterable[Measured], inputs: Iterable[str | Path] = ()
) -> list[Path]:
    """Write ``gemm.csv`` and ``membound.csv`` and return those that have rows.

    A campaign that fails or is interrupted leaves its measurements in ``gemm.partial.csv`` and
    ``membound.partial.csv``; a note on its error names them. ``inputs`` are files that it reads.

    Raises:
        OutputError: A file cannot be written, or is an input.
    """
    paths = [Path(folder) / name for name in ("gemm.csv", "membound.csv")]
    files: dict[Path, BinaryIO] = {}
    with Outputs({str(path): path for path in paths}, inputs) as outputs:
        try:
            for item in measured:
                is_gemm = isinstance(item.shape, GemmShape)
                path = paths[0 if is_gemm else 1]
                if path not in files:
                    with outputs.writing(str(path)) as file:
                        files[path] = file
                        shape = ("m", "n", "k") if is_gemm else ("rows", "cols")
                        file.write(_line((*_HEAD, *shape, *_TAIL)))
                with outputs.writing(str(path)) as file:
                    file.write(_line(_cells(device, item)))
            outputs.publish()
        except BaseException as error:
            _keep(files, error)
            raise
    return list(files)


def _line(cells: Iterable[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().encode()


def _keep(files: dict[Path, BinaryIO], error: BaseException) -> None:
    for path, file in files.items():
        partial = path.with_suffix(".partial.csv")
        file.seek(0)
        with whole_file(partial) as kept:
            kept.write(file.read())
        error.add_note(f"what was measured is in {partial}")


def _cells(device: str, measured: Measured) -> list[object]:
    shape, time_us = measured.shape, measured.time_us
    size_bytes = bytes_of(measured)
    if isinstance(shape, GemmShape):
        op, sizes = "gemm", [shape.m, shape.n, shape.k]
        tflops = f"{2 * shape.m * shape.n * shape.k / time_us / 1e6:.5g}"
    else:
        op, sizes, tflops = shape.op, [shape.rows, shape.cols], ""
    return [
        device, op, _DTYPES.get(measured.dtype.name, measured.dtype.name), *sizes, 1, size_bytes,
        f"{time_us:.6g}", tflops, f"{size_bytes / time_us / 1e3:.5g}",
        measured.impl, measured.num_runs, f"{measured.spread_pct:.3g}", measured.clock_mhz or "",
        measured.source,
    ]  # fmt: skip


def bytes_of(measured: Measured) -> int:
    """Return the least bytes that a shape moves: every operand and result once."""
    size = measured.dtype.itemsize
    shape = measured.shape
    if isinstance(shape, RowShape):
        return _STREAMS.get(shape.op, 2) * shape.rows * shape.cols * size
    return (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n) * size
