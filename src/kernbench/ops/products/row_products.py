"""The kernel of a plain product of one row: the matrix kernel, or a vector tile.

A tile of a matrix engine has many rows of C, of which one row fills one. What is faster is asked of
the timing of each kernel on the device, once per shape; no rule of sizes says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kernbench.commands import KernelTrace
from kernbench.dtypes import DType
from kernbench.hardware import Machine
from kernbench.kernel_time import kernel_duration_ps
from kernbench.ops.base.layout import Ints
from kernbench.ops.probe import KernelCall, KernelProbe, ProbePointer
from kernbench.ops.products.gemm_library import in_stages, takes_shared_operands, vector_tiles

Types = tuple[DType | None, ...]
"""The dtypes of a, b, bias and c; None where there is no bias."""


@dataclass(frozen=True, slots=True)
class ProductLaunch:
    """A launch of a product that lacks only a, b, bias and c."""

    kernel: Any
    numbers: Ints
    grid: Ints
    constants: tuple[tuple[str, Any], ...]
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProduct:
    """``C = activation(A @ B + bias)`` with one row of A; strides in elements."""

    n: int
    k: int
    strides: Ints
    """Strides of a row and a column of a, of b, of a column of bias, of a row and a column of c."""
    activation: Any
    accumulator: Any
    types: Types


def fastest_launch(plain: ProductLaunch, product: RowProduct, machine: Machine) -> ProductLaunch:
    """Return ``plain`` or the launch of a vector tile, whichever is faster on an idle device.

    Engines that take operands from shared memory keep ``plain``, as libraries for them do.
    """
    if takes_shared_operands(machine.sip):
        return plain
    known = [plain, *_vector_launches(product, machine)]
    times = [kernel_duration_ps(_trace(launch, product.types), machine, 0) for launch in known]
    return known[times.index(min(times))]


def _vector_launches(product: RowProduct, machine: Machine) -> Iterator[ProductLaunch]:
    dtype = product.types[0]
    assert dtype is not None
    a_m, a_k, b_k, b_n, bias_n, c_m, c_n = product.strides
    for vector_tile in vector_tiles():
        tile = in_stages(vector_tile, dtype, machine.sip)
        if tile is None:
            continue
        numbers = (
            1, product.n, product.k, tile.steps(product.k),
            a_m, a_k, b_k, b_n, bias_n, product.n, c_m, c_n,
        )  # fmt: skip
        constants = tile.constants(dtype)
        stages = constants.pop("num_stages")
        constants |= {"ACTIVATION": product.activation, "ACC": product.accumulator}
        grid = tile.grid(1, product.n)
        yield ProductLaunch(tile.kernel, numbers, grid, tuple(constants.items()), stages)


@lru_cache(maxsize=512)
def _trace(launch: ProductLaunch, types: Types) -> KernelTrace:
    """Return the trace of a launch, which is the same on all machines."""
    pointers = tuple(None if dtype is None else ProbePointer(dtype) for dtype in types)
    options = {**dict(launch.constants), "num_stages": launch.num_stages}
    call = KernelCall(launch.kernel, launch.grid, (*pointers, *launch.numbers), options)
    return KernelProbe().trace(call)
