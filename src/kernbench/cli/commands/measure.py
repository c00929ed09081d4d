"""``kernbench measure``: time kernels on this computer's GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from kernbench.cli import options as common
from kernbench.cli.registry import options_command

if TYPE_CHECKING:
    from kernbench.accuracy.measurement import Shape, TimedDevice


PLACE = 50
app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(common.CommandOptions):
    """What ``kernbench measure`` was given."""

    out: str = common.option("measured", metavar="DIR", help="Where gemm.csv and membound.csv go.")
    device: str | None = common.option(
        None, metavar="NAME", help="Name of the device in the rows; the GPU's."
    )
    dtype: str = common.option("bfloat16", metavar="NAME", help="bfloat16, float16 or float32.")
    gemm: list[str] | None = common.option(
        None, metavar="M,N,K", help="Measure this GEMM; repeatable."
    )
    shapes: list[str] | None = common.option(
        None, metavar="FILE", help="CSV of shapes: m, n, k or op, rows, cols; repeatable."
    )


@options_command(app, "measure")
def _measure(context: typer.Context, options: MeasureOptions) -> int:
    """Time kernbench's Triton kernels and the vendor's GEMM on this computer's GPU.

    kernbench measure --out measured

    Writes CSV files that validate and calibrate read. Needs PyTorch with CUDA beside kernbench.
    """
    measure(options)
    return 0


def measure(options: MeasureOptions, make_device: Callable[[], TimedDevice] | None = None) -> None:
    """Measure and write; ``make_device`` stands for the GPU in tests."""
    from kernbench.accuracy.measurement import (
        CudaDevice,
        default_shapes,
        parse_gemm,
        read_shapes,
        write_rows,
    )
    from kernbench.accuracy.measurement import measure as measured
    from kernbench.dtypes import bfloat16, float16, float32
    from kernbench.errors import UnknownNameError, nearest

    dtypes = {dtype.name: dtype for dtype in (bfloat16, float16, float32)}
    if options.dtype not in dtypes:
        raise UnknownNameError(f"unknown dtype {options.dtype!r}: {nearest(options.dtype, dtypes)}")
    shapes: list[Shape] = [parse_gemm(name) for name in options.gemm or ()]
    for file in options.shapes or ():
        shapes += read_shapes(file)
    device = make_device() if make_device is not None else CudaDevice(options.device)
    rows = measured(device, shapes or default_shapes(), dtypes[options.dtype])
    for path in write_rows(options.out, device.name, rows, options.shapes or ()):
        print(f"wrote {path}")
