"""Times every shape with the vendor's product, and with the Triton kernels that the model times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kernbench.accuracy.measurement.device import TimedDevice
from kernbench.accuracy.measurement.shapes import GemmShape, RowShape, Shape
from kernbench.dtypes import DType, float32
from kernbench.errors import UsageError
from kernbench.ops import (
    ELEMENTWISE_OPS,
    GemmTile,
    elementwise_call,
    library_tiles,
    product_call,
    rows_call,
    sum_parts_call,
)

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
