"""Times every shape with the vendor's product, and with the Triton kernels that the model times."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kernbench.accuracy.measurement.device import TimedDevice
from kernbench.dtypes import DType, float32
from kernbench.errors import UsageError
from kernbench.inputs import opened_csv
from kernbench.ops import (
    ELEMENTWISE_OPS,
    ROW_OPS,
    GemmTile,
    elementwise_call,
    library_tiles,
    product_call,
    rows_call,
    sum_parts_call,
)
from kernbench.outputs import Outputs, whole_file

MEMBOUND_OPS = tuple(sorted(ELEMENTWISE_OPS | ROW_OPS))

# The default list: a decode step, a small batch, and prefills; weights of 2 to 400 MB.
_GEMM_M = (1, 16, 64, 256, 1024, 4096)
_GEMM_NK = (
    (1024, 1024), (4096, 1024), (1024, 4096), (4096, 4096), (8192, 8192), (12288, 4096),
    (4096, 12288), (16384, 4096), (5120, 16384), (7168, 2048), (2048, 7168), (10240, 256),
)  # fmt: skip
_ROW_SHAPES = ((1024, 1024), (4096, 2048), (8192, 4096), (16384, 8192), (32768, 8192))


@dataclass(frozen=True, slots=True)
class GemmShape:
    """``C[m, n] = A[m, k] @ B[k, n]``."""

    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class RowShape:
    """An operation of kernbench.ops on ``rows`` x ``cols`` elements."""

    op: str
    rows: int
    cols: int


Shape = GemmShape | RowShape


def default_shapes() -> list[Shape]:
    """Return the default list: 72 GEMMs and 5 sizes of every other op."""
    gemms = [GemmShape(m, n, k) for n, k in _GEMM_NK for m in _GEMM_M]
    return [*gemms, *(RowShape(op, *size) for op in MEMBOUND_OPS for size in _ROW_SHAPES)]


def parse_gemm(text: str) -> GemmShape:
    """Return the shape of ``M,N,K``.

    Raises:
        UsageError: It is not three whole numbers above 0.
    """
    return GemmShape(*_sizes(text, "M,N,K"))


def read_shapes(path: str | Path) -> list[Shape]:
    """Return the distinct shapes of a CSV file with the columns m, n, k or op, rows, cols.

    A file of measured rows is such a file, so that another device can be measured at its shapes.

    Raises:
        UsageError: The file cannot be read, or has neither set of columns; a size is not a whole
        number above 0; an op is unknown. The text names the line.
    """
    path = Path(path)
    with opened_csv(path) as reader:
        return list(dict.fromkeys(_of_lines(path.name, reader)))


def _of_lines(file: str, reader: csv.DictReader[str]) -> Iterator[Shape]:
    columns = set(reader.fieldnames or ())
    if columns.issuperset(("m", "n", "k")):
        names: Sequence[str] = ("m", "n", "k")
    elif columns.issuperset(("op", "rows", "cols")):
        names = ("rows", "cols")
    else:
        raise UsageError(f"{file}: a list of shapes has the columns m, n, k or op, rows, cols")
    for fields in reader:
        where = f"{file}:{reader.line_num}"
        sizes = _sizes(",".join(fields[name] or "" for name in names), ",".join(names), where)
        if len(sizes) == len(("m", "n", "k")):
            yield GemmShape(*sizes)
        elif fields["op"] not in MEMBOUND_OPS:
            known = ", ".join(MEMBOUND_OPS)
            raise UsageError(f"{where}: no kernel for op {fields['op']!r}; known: {known}")
        else:
            yield RowShape(fields["op"], *sizes)


def _sizes(text: str, names: str, where: str = "") -> list[int]:
    parts = text.split(",")
    if len(parts) != len(names.split(",")) or not all(
        part.strip().isdecimal() and int(part) > 0 for part in parts
    ):
        raise UsageError(
            f"{where}{': ' if where else ''}{names} must be whole numbers above 0, but got {text!r}"
        )
    return [int(part) for part in parts]


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


WARM_UPS = 5
"""Warm-up runs, not counted: compilation, clocks, page tables."""
LEAST_RUNS = 10
MOST_RUNS = 200
_TARGET_US = 50_000.0
"""The total time of a kernel's counted runs, within the limits of their number."""
_TRIAL_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The median of many runs of one kernel or call."""

    shape: Shape
    dtype: DType
    impl: str
    source: str
    time_us: float
    num_runs: int
    spread_pct: float
    """The distance from the first to the ninth decile, in percent of the median."""
    clock_mhz: int | None
    """The clock right after the runs."""


def measure(device: TimedDevice, shapes: Sequence[Shape], dtype: DType) -> Iterator[Measured]:
    """Yield the measurements of every shape, as they are made.

    A GEMM gives two: the vendor's, and the fastest tile of the Triton kernel by which the model
    predicts GEMMs. Tiles that do not fit on the device are left out.

    Raises:
        UsageError: No tile of a GEMM fits.
    """
    for shape in shapes:
        if isinstance(shape, GemmShape):
            yield from _products(device, shape, dtype)
        else:
            yield _rows(device, shape, dtype)


def _products(device: TimedDevice, shape: GemmShape, dtype: DType) -> Iterator[Measured]:
    m, n, k = shape.m, shape.n, shape.k
    a, b, out = device.tensor(m, k, dtype), device.tensor(k, n, dtype), device.tensor(m, n, dtype)
    yield _timed(
        device, shape, dtype, lambda: device.run_product(a, b, out), "vendor", "measure-vendor"
    )
    best: tuple[float, GemmTile, Callable[[], None]] | None = None
    for tile in library_tiles(k, dtype, wide=True):
        work = _product(device, shape, dtype, tile, (a, b, out))
        try:
            work()
        except LookupError:
            continue
        time_us = statistics.median(device.times_us(work, _TRIAL_RUNS))
        if best is None or time_us < best[0]:
            best = time_us, tile, work
    if best is None:
        raise UsageError(f"no tile of a GEMM of {dtype} fits on {device.name}")
    _, tile, work = best
    yield _timed(device, shape, dtype, work, f"kernbench Triton {tile}", "measure-triton")


def _product(
    device: TimedDevice,
    shape: GemmShape,
    dtype: DType,
    tile: GemmTile,
    tensors: tuple[object, object, object],
) -> Callable[[], None]:
    """Return a launch of the Triton product; with split-K, two launches."""
    a, b, out = tensors
    size = shape.m * shape.n
    sizes = (shape.m, shape.n, shape.k)
    if tile.split_k == 1:
        call = product_call(a, b, out, sizes, dtype, tile)
        return lambda: device.run(call)
    parts = device.tensor(tile.split_k * shape.m, shape.n, float32)
    calls = (
        product_call(a, b, parts, sizes, dtype, tile),
        sum_parts_call(out, parts, size, tile.split_k),
    )

    def both() -> None:
        for call in calls:
            device.run(call)

    return both


def _rows(device: TimedDevice, shape: RowShape, dtype: DType) -> Measured:
    out, x, y = (device.tensor(shape.rows, shape.cols, dtype) for _ in range(3))
    if shape.op in ELEMENTWISE_OPS:
        call = elementwise_call(shape.op, out, (x, y), dtype, shape.rows * shape.cols)
    else:
        weight = device.tensor(1, shape.cols, dtype)
        other = y if shape.op == "add_rmsnorm" else device.tensor(1, shape.cols, dtype)
        call = rows_call(shape.op, out, (x, weight, other), dtype, shape.rows, shape.cols)
    return _timed(
        device, shape, dtype, lambda: device.run(call), "kernbench Triton", "measure-triton"
    )


def _timed(
    device: TimedDevice,
    shape: Shape,
    dtype: DType,
    work: Callable[[], None],
    impl: str,
    source: str,
) -> Measured:
    for _ in range(WARM_UPS):
        work()
    trial_us = statistics.median(device.times_us(work, _TRIAL_RUNS))
    runs = max(LEAST_RUNS, min(MOST_RUNS, int(_TARGET_US / max(trial_us, 1e-3))))
    times = sorted(device.times_us(work, runs))
    median_us = statistics.median(times)
    spread = times[int(0.9 * (runs - 1))] - times[int(0.1 * (runs - 1))]
    return Measured(
        shape=shape,
        dtype=dtype,
        impl=impl,
        source=source,
        time_us=median_us,
        num_runs=runs,
        spread_pct=100 * spread / median_us,
        clock_mhz=device.clock_mhz(),
    )
