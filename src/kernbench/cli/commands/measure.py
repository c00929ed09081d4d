"""``kernbench measure``: time kernels on this computer's GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kernbench.accuracy.measurement import Shape, TimedDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """What ``kernbench measure`` was given; see ``kernbench measure --help``."""

    out: str
    device: str | None
    dtype: str
    gemm: tuple[str, ...]
    shapes: tuple[str, ...]


PLACE = 50
app = typer.Typer()


@app.command("measure")
def _measure(
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Where gemm.csv and membound.csv go.")
    ] = "measured",
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the device in the rows; the GPU's.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="bfloat16, float16 or float32.")
    ] = "bfloat16",
    gemm: Annotated[
        list[str] | None, typer.Option(metavar="M,N,K", help="Measure this GEMM; repeatable.")
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="CSV of shapes: m, n, k or op, rows, cols; repeatable."),
    ] = None,
) -> None:
    """Time kernbench's Triton kernels and the vendor's GEMM on this computer's GPU.

    kernbench measure --out measured

    Writes CSV files that validate and calibrate read. Needs PyTorch with CUDA beside kernbench.
    """
    options = MeasureOptions(
        out=out, device=device, dtype=dtype, gemm=tuple(gemm or ()), shapes=tuple(shapes or ())
    )
    measure(options)


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
    shapes: list[Shape] = [parse_gemm(name) for name in options.gemm]
    for file in options.shapes:
        shapes += read_shapes(file)
    device = make_device() if make_device is not None else CudaDevice(options.device)
    rows = measured(device, shapes or default_shapes(), dtypes[options.dtype])
    for path in write_rows(options.out, device.name, rows, options.shapes):
        print(f"wrote {path}")
