"""Measurements as CSV rows in the columns that ``kernbench validate`` reads."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from kernbench.errors import UsageError
from kernbench.measurement.campaign import Measured
from kernbench.measurement.shapes import GemmShape, RowShape

_HEAD = ("device", "op", "dtype")
_TAIL = ("n_ranks", "bytes", "time_us", "tflops", "gbps", "impl", "n_runs", "spread_pct",
         "clock_mhz", "source")  # fmt: skip
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_STREAMS = {"add": 3, "mul": 3, "silu_mul": 3, "add_rmsnorm": 4}
"""Tensors that an operation reads and writes; two where nothing is said."""


def write_rows(folder: str | Path, device: str, measured: Iterable[Measured]) -> list[Path]:
    """Write ``gemm.csv`` and ``membound.csv`` and return those that have rows.

    A row is written as soon as it is there, so that an interrupted campaign keeps what it has.

    Raises:
        UsageError: A file cannot be written.
    """
    folder = Path(folder)
    files = {}
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in measured:
            gemm = isinstance(each.shape, GemmShape)
            path = folder / ("gemm.csv" if gemm else "membound.csv")
            if path not in files:
                files[path] = path.open("w", newline="", encoding="utf-8")
                written.append(path)
                shape = ("m", "n", "k") if gemm else ("rows", "cols")
                csv.writer(files[path]).writerow((*_HEAD, *shape, *_TAIL))
            csv.writer(files[path]).writerow(_cells(device, each))
            files[path].flush()
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}") from None
    finally:
        for file in files.values():
            file.close()
    return written


def _cells(device: str, each: Measured) -> list[object]:
    shape, time_us = each.shape, each.time_us
    size_bytes = bytes_of(each)
    if isinstance(shape, GemmShape):
        op, sizes = "gemm", [shape.m, shape.n, shape.k]
        tflops = f"{2 * shape.m * shape.n * shape.k / time_us / 1e6:.5g}"
    else:
        op, sizes, tflops = shape.op, [shape.rows, shape.cols], ""
    return [
        device, op, _DTYPES.get(each.dtype.name, each.dtype.name), *sizes, 1, size_bytes,
        f"{time_us:.6g}", tflops, f"{size_bytes / time_us / 1e3:.5g}", each.impl, each.num_runs,
        f"{each.spread_pct:.3g}", each.clock_mhz or "", each.source,
    ]  # fmt: skip


def bytes_of(measured: Measured) -> int:
    """Return the least that a shape moves: every operand and result once."""
    size = measured.dtype.itemsize
    shape = measured.shape
    if isinstance(shape, RowShape):
        return _STREAMS.get(shape.op, 2) * shape.rows * shape.cols * size
    return (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n) * size
