"""The time of matrix products: that of the vendor library, or of kernbench's own Triton kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernbench.dtypes import float32
from kernbench.hardware import load_library
from kernbench.library_kernels import Product, family_of, grouped_kernels, product_kernels
from kernbench.ops import gemm_blocks, matmul, record_launches, sum_parts_call
from kernbench.torch_bridge.costs.library import timing_of_library
from kernbench.torch_bridge.costs.products import PLAIN, OperandLayout, flops_of
from kernbench.torch_bridge.costs.sequences import timing_of_kernels

if TYPE_CHECKING:
    from kernbench.dtypes import DType
    from kernbench.hardware import Machine
    from kernbench.library_kernels import LibraryKernel
    from kernbench.torch_bridge.base.operation_timing import OperationTiming
    from kernbench.torch_bridge.costs.products import Products, Sizes
    from kernbench.torch_bridge.processes.float32 import Float32


_FP4 = "float4_e2m1fn"
_FP4_BYTES = 0.5 + 1 / 16
"""Bytes per element, scales included: blocks of 16 share one of a byte."""
_LEAST_PART = 1024
"""The shortest part of K in a split-K product."""


class GemmCosts:
    """Schedules of products on one machine; each is computed once."""

    def __init__(self, machine: Machine, precision: Float32) -> None:
        self._machine = machine
        self._precision = precision
        self._known: dict[Any, OperationTiming] = {}
        self.emulated: set[str] = set()
        """Operations whose operands no unit of the device multiplies."""

    def timing(
        self,
        name: str,
        products: Products,
        dtype: DType,
        out_dtype: DType,
        sip_id: int,
        precision: str = "ieee",
        layout: OperandLayout = PLAIN,
    ) -> OperationTiming:
        """Return the schedules of products ``C[b, m, n] = A[b, m, k] @ B[b, k, n]``.

        Raises:
            MachineError: The machine has no rate for operands of ``dtype``.
        """
        sip = self._machine.sip_at(sip_id)
        key = (name, products, dtype, out_dtype, precision, layout, id(sip))
        found = self._known.get(key)
        if found is None:
            if dtype.itemsize == 1:
                # Raised at the program's call: not all machines multiply FP8.
                sip.gemm_flops_per_clock(dtype.name)
            found = self._by_library(name, products, dtype, out_dtype, sip_id, precision, layout)
            if found is None:
                if layout.grouped and len(products) > 1:
                    products = _whole_tiles(products, dtype.itemsize)
                traces = [
                    trace
                    for sizes in products
                    for trace in record_launches(
                        _one(sizes, dtype, out_dtype, precision, sip.num_pes),
                        self._machine,
                    )
                ]
                found = timing_of_kernels(name, traces, self._machine, sip_id)
            self._known[key] = found
        return found

    def of_fp4(
        self, name: str, products: Products, out_dtype: DType, sip_id: int
    ) -> OperationTiming | None:
        """Return the schedules of products of 4-bit floats, of which K counts pairs.

        None where the machine's library has no kernels for products.

        Raises:
            MachineError: The machine has no rate for them.
        """
        architecture = self._machine.spec.kernel_library
        sip = self._machine.sip_at(sip_id)
        sip.gemm_flops_per_clock(_FP4)
        if architecture is None:
            return None
        library = load_library(architecture)
        if f"blas_{family_of(_FP4)}" not in library.names():
            return None
        key = (name, products, _FP4, out_dtype, id(sip))
        found = self._known.get(key)
        if found is None:
            kernels: list[LibraryKernel] = []
            for batch, m, n, pairs, *_ in products:
                product = Product(
                    batch=batch,
                    m=m,
                    n=n,
                    k=2 * pairs,
                    dtype=_FP4,
                    itemsize=_FP4_BYTES,
                    out_bytes=out_dtype.itemsize,
                )
                kernels += product_kernels(product, sip, library).kernels
            flops = 2 * flops_of(products)
            found = self._known[key] = timing_of_library(name, kernels, sip, library, flops)
        return found

    def _by_library(
        self,
        name: str,
        products: Products,
        dtype: DType,
        out_dtype: DType,
        sip_id: int,
        precision: str,
        layout: OperandLayout,
    ) -> OperationTiming | None:
        """Return the time of the vendor library's kernels; None if the machine has none."""
        architecture = self._machine.spec.kernel_library
        if architecture is None or any(rows for _, _, _, _, *rows in products):
            # Rows of patches are those of convolutions.
            return None
        sip, library = self._machine.sip_at(sip_id), load_library(architecture)
        rates = sip.pe.gemm.flops_per_clock
        multiplied = precision if dtype == float32 and precision in rates else dtype.name
        emulated = ""
        if multiplied not in rates and f"blas_{multiplied}" in library.names():
            emulated, multiplied = multiplied, float32.name
            self.emulated.add(name)
        if multiplied not in rates or f"blas_{family_of(multiplied)}" not in library.names():
            return None
        is_wide = dtype.itemsize != 2 or dtype.name in self._precision.wide_sums
        made = [
            Product(
                batch=batch,
                m=m,
                n=n,
                k=k,
                dtype=multiplied,
                emulates=emulated,
                itemsize=dtype.itemsize,
                out_bytes=out_dtype.itemsize,
                part_bytes=float32.itemsize if is_wide else out_dtype.itemsize,
                may_split=dtype.name not in self._precision.whole_sums,
                access_bytes=layout.access_bytes,
                weight_bytes=layout.weight_bytes,
                a_shared=layout.a_shared,
                b_shared=layout.b_shared,
            )
            for batch, m, n, k in products
        ]
        kernels: list[LibraryKernel] = []
        if layout.grouped:
            kernels += grouped_kernels(made, sip, library).kernels
        else:
            for each in made:
                kernels += product_kernels(each, sip, library).kernels
        return timing_of_library(name, kernels, sip, library, flops_of(products))


def _one(
    sizes: Sizes, dtype: DType, out_dtype: DType, precision: str, num_pes: int
) -> Callable[[Any], object]:
    batch, m, n, k, *rows = sizes
    a_row, b_row = rows or (k, n)
    parts = _num_parts(batch, m, n, k, dtype.itemsize, num_pes) if rows else 1
    k = -(-k // parts)
    entries = () if batch * parts == 1 else (batch * parts,)

    def launch(at: Any) -> None:
        a = _with_rows(at.tensor((*entries, m, k), dtype), a_row)
        b = _with_rows(at.tensor((*entries, k, n), dtype), b_row)
        made = at.tensor((*entries, m, n), float32 if parts > 1 else out_dtype)
        matmul(a, b, out=made, input_precision=precision)
        if parts > 1:
            call = sum_parts_call(at.tensor((batch, m, n), out_dtype), made, batch * m * n, parts)
            at.launch("sum", call.kernel, *call.args, grid=call.grid, **call.options)

    return launch


def _whole_tiles(products: Products, itemsize: int) -> Products:
    """Return products of whole tiles, equal ones as one: groups have as many sizes as numbers."""
    counts = Counter[tuple[int, int, int]]()
    for batch, m, n, k in products:
        blocks = gemm_blocks(m, n, itemsize)
        by = zip((m, n, k), (blocks[f"BLOCK_{each}"] for each in "MNK"), strict=True)
        m, n, k = (-(-size // block) * block for size, block in by)
        counts[m, n, k] += batch
    return tuple((count, *sizes) for sizes, count in counts.items())


def _num_parts(batch: int, m: int, n: int, k: int, itemsize: int, num_pes: int) -> int:
    """Return the number of parts that K is split into, so that few tiles of C keep all PEs busy."""
    blocks = gemm_blocks(m, n, itemsize)
    tiles = batch * -(-m // blocks["BLOCK_M"]) * -(-n // blocks["BLOCK_N"])
    return max(min(num_pes // tiles, k // _LEAST_PART), 1)


def _with_rows(tensor: Any, row: int) -> Any:
    """Return a stand-in with this row stride in elements; rows of patches overlap."""
    strides = list(tensor.stride())
    if strides[-2] == row:
        return tensor
    strides[:-1] = [row * each // strides[-2] for each in strides[:-1]]
    tensor.stride = lambda: tuple(strides)
    return tensor
