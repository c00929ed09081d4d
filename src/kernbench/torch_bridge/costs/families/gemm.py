"""The time of matrix products: that of the vendor library, or of kernbench's own Triton kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, float4_e2m1fn_x2

from kernbench.dtypes import DType, float32, int8
from kernbench.library_kernels import (
    ExpertProduct,
    ExpertTiles,
    LibraryKernel,
    Product,
    expert_product,
    family_of,
    grouped_kernels,
    product_kernels,
)
from kernbench.ops import gemm_blocks, matmul, record_launches, sum_parts_call
from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.costs.library import timing_of_library
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.products import (
    BATCHED,
    CONVOLUTIONS,
    PLAIN,
    PRODUCTS,
    RECURRENT_ON_HOST,
    OperandLayout,
    Products,
    Sizes,
    first_of,
    flops_of,
    layout_of,
    of_complex,
    operand_of,
)
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.sequences import timing_of_kernels

_FP4 = "float4_e2m1fn"
_FP4_BYTES = 0.5 + 1 / 16
"""Bytes per element, scales included: blocks of 16 share one of a byte."""
_LEAST_PART = 1024
"""The shortest part of K in a split-K product."""


class Multiplication(NamedTuple):
    """Products ``C[b, m, n] = A[b, m, k] @ B[b, k, n]``."""

    products: Products
    dtype: DType | None
    """None of 4-bit floats."""
    out_dtype: DType
    precision: str = "ieee"
    layout: OperandLayout = PLAIN
    library: str = "blas"
    """Whose kernels, as in ``library_kernels.Product``."""
    experts: ExpertTiles | None = None
    """The tiles of groups that experts' own kernels multiply, where the architecture has these."""


_OF_VECTORS = frozenset({"aten::mv", "aten::addmv"})


def _key(costs: OperationCosts, call: OperationCall) -> Multiplication | None:
    ends_at = call.operation.ends_at
    if ends_at is not None and any(isinstance(arg, Tensor) for arg in call.args[ends_at:][:1]):
        costs.even_groups.add(call.name)
    kind = "recurrent" if call.func in RECURRENT_ON_HOST else "matmul"
    return multiplication(costs, call, kind)


def multiplication(costs: OperationCosts, call: OperationCall, kind: str) -> Multiplication | None:
    """Return the products of a call, whose float32 has the precision of their kind.

    None where there are none, or where no unit that is described multiplies such numbers.
    """
    func, args, result = call.func, call.args, call.result
    sizes = PRODUCTS[func](args, result)
    multiplied, stored = _first_dtype(operand_of(func, args, result)), _first_dtype(result)
    if multiplied.is_complex:
        sizes = of_complex(sizes)
        multiplied, stored = multiplied.to_real(), stored.to_real()
    dtype, out_dtype = kernel_dtype(multiplied), kernel_dtype(stored)
    if multiplied is float4_e2m1fn_x2 and out_dtype is not None:
        # Their K counts pairs.
        sizes = tuple((batch, m, n, 2 * k) for batch, m, n, k, *_ in sizes)
        return Multiplication(sizes, None, out_dtype)
    if not sizes or dtype is None or out_dtype is None:
        return None
    rates = costs.machine.sip_at(call.sip_id).pe.gemm.flops_per_clock
    if dtype == int8 and int8.name not in rates:
        # Older GPUs multiply integers on units that are not described.
        return None
    precision = costs.input_precision(kind, dtype, call.sip_id)
    return Multiplication(sizes, dtype, out_dtype, precision, layout_of(func, args, result))


def _first_dtype(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.dtype
    return next((item.dtype for item in result if isinstance(item, Tensor)), None)


def kernels(
    costs: OperationCosts, name: str, problem: Multiplication, sip_id: int
) -> OperationTiming | None:
    """Return the schedules of products.

    Raises:
        MachineError: The machine has no rate for their operands.
    """
    products, dtype, out_dtype, precision, layout, *_ = problem
    sip = costs.machine.sip_at(sip_id)
    if dtype is None or dtype.itemsize == 1:
        # Raised at the program's call: not all machines multiply so few bits.
        sip.gemm_flops_per_clock(_FP4 if dtype is None else dtype.name)
    library = _by_library(costs, name, problem, sip_id)
    if library is not None or dtype is None:
        return library
    if layout.grouped and len(products) > 1:
        products = _whole_tiles(products, dtype.itemsize)
    traces = [
        trace
        for sizes in products
        for trace in record_launches(
            _one(sizes, dtype, out_dtype, precision, sip.num_pes), costs.machine
        )
    ]
    return timing_of_kernels(name, traces, costs.machine, sip_id)


def _by_library(
    costs: OperationCosts, name: str, problem: Multiplication, sip_id: int
) -> OperationTiming | None:
    """Return the time of the vendor library's kernels; None if the machine has none."""
    products, dtype, out_dtype, precision, layout, whose, experts = problem
    sip, library = costs.machine.sip_at(sip_id), costs.library
    if library is None or any(rows for _, _, _, _, *rows in products):
        # Rows of patches are those of convolutions.
        return None
    rates = sip.pe.gemm.flops_per_clock
    own, itemsize = (_FP4, _FP4_BYTES) if dtype is None else (dtype.name, dtype.itemsize)
    multiplied = precision if dtype == float32 and precision in rates else own
    emulated = ""
    if multiplied not in rates and f"blas_{multiplied}" in library.names():
        emulated, multiplied = multiplied, float32.name
        costs.emulated.add(name)
    if multiplied not in rates or f"blas_{family_of(multiplied)}" not in library.names():
        return None
    if experts is not None and experts.name in library.names():
        launch = _of_experts(problem, experts, itemsize, sip.num_pes)
        return timing_of_library(name, (launch,), sip, library, flops_of(products))
    is_wide = itemsize != 2 or own in costs.precision.wide_sums
    result = [
        Product(
            batch=batch,
            m=m,
            n=n,
            k=k,
            dtype=multiplied,
            emulates=emulated,
            itemsize=itemsize,
            out_bytes=out_dtype.itemsize,
            part_bytes=float32.itemsize if is_wide else out_dtype.itemsize,
            may_split=own not in costs.precision.whole_sums,
            access_bytes=layout.access_bytes,
            weight_bytes=layout.weight_bytes,
            a_shared=layout.a_shared,
            b_shared=layout.b_shared,
            library=whose,
            along_k=layout.along_k,
        )
        for batch, m, n, k in products
    ]
    kernels: list[LibraryKernel] = []
    if layout.grouped:
        kernels += grouped_kernels(result, sip, library).kernels
    else:
        for product in result:
            kernels += product_kernels(product, sip, library).kernels
    return timing_of_library(name, kernels, sip, library, flops_of(products))


def _of_experts(
    problem: Multiplication, tiles: ExpertTiles, itemsize: float, pes: int
) -> LibraryKernel:
    """Return the launch of experts' products, whose weights other layers' have pushed out."""
    products, dtype, weight_bytes = problem.products, problem.dtype, problem.layout.weight_bytes
    assert dtype is not None
    product = ExpertProduct(
        rows=tuple(m for count, m, *_ in products for _ in range(count)),
        columns=products[0][2],
        depth=products[0][3],
        dtype=dtype.name,
        row_bytes=itemsize,
        weight_bytes=itemsize if weight_bytes is None else weight_bytes,
        pes=pes,
    )
    return expert_product(product, tiles)


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
        tensor = at.tensor((*entries, m, n), float32 if parts > 1 else out_dtype)
        matmul(a, b, out=tensor, input_precision=precision)
        if parts > 1:
            call = sum_parts_call(at.tensor((batch, m, n), out_dtype), tensor, batch * m * n, parts)
            at.launch("sum", call.kernel, *call.args, grid=call.grid, **call.options)

    return launch


def _whole_tiles(products: Products, itemsize: int) -> Products:
    """Return products of whole tiles, equal ones as one: groups have as many sizes as numbers."""
    counts = Counter[tuple[int, int, int]]()
    for batch, m, n, k in products:
        blocks = gemm_blocks(m, n, itemsize)
        by = zip((m, n, k), (blocks[f"BLOCK_{name}"] for name in "MNK"), strict=True)
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
    strides[:-1] = [row * stride // strides[-2] for stride in strides[:-1]]
    tensor.stride = lambda: tuple(strides)
    return tensor


def _weight(call: OperationCall) -> Sequence[Any]:
    """Return the second operand: in a backward, too, a weight or what the forward has kept."""
    name = call.func._schema.name
    if name in BATCHED:
        return ()
    first = first_of(call.func)
    return (call.args[first if name in _OF_VECTORS else first + 1],)


FAMILY = Family(
    matches=lambda func: func in PRODUCTS and func not in CONVOLUTIONS,
    key=_key,
    kernels=kernels,
    cold=_weight,
)
