"""Matrix products: one GEMM kernel for any strides, with bias and activation in its epilogue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import triton
import triton.language as tl

from kernbench.commands import KernelTrace
from kernbench.dtypes import DType, int8, int32
from kernbench.errors import UsageError
from kernbench.hardware import Machine
from kernbench.kernel_time import kernel_duration_ps
from kernbench.ops.base import scalar_functions as fn
from kernbench.ops.base.kernel import Memo, index_type, kernel, new_result, prepare, require_dims
from kernbench.ops.base.layout import Ints, block, broadcast_shape, broadcast_strides, build_walk
from kernbench.ops.base.promotion import compute_dtype, require_float
from kernbench.ops.fused import bias_activation
from kernbench.ops.probe import KernelCall, KernelProbe, ProbePointer
from kernbench.ops.products.gemm_library import (
    TileChoice,
    chosen_tiles,
    in_stages,
    takes_shared_operands,
    vector_tiles,
)
from kernbench.ops.products.gemm_tiles import launch_tiles
from kernbench.runtime_api import Tensor

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


_PREPARED = Memo()
"""The shape and prepared launch of each product, by the dtypes and layouts of its operands."""

GROUP_M = 8
NUM_STAGES = 3

ACTIVATIONS = {None: None, "gelu": fn.gelu, "relu": fn.relu, "silu": fn.silu}


@kernel
def gemm(
    a_ptr, b_ptr, bias_ptr, c_ptr, M, N, K,
    a_batch, a_m, a_k, b_batch, b_k, b_n, bias_n, c_batch, c_m, c_n,
    ACTIVATION: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr = "ieee", INDEX: tl.constexpr = tl.int32,
):  # fmt: skip
    """``C[M, N] = activation(A[M, K] @ B[K, N] + bias[N])``, a batch entry per ``program_id(1)``.

    Programs go through C in bands of GROUP tiles in M, so that neighbours share tiles of A and B
    (Source: Triton's tutorial 03). Sums are kept in ACC, offsets of rows and columns in INDEX.
    """
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    first_m = pid // (GROUP * num_n) * GROUP
    band = min(num_m - first_m, GROUP)
    m = ((first_m + pid % (GROUP * num_n) % band) * BLOCK_M + tl.arange(0, BLOCK_M)).to(INDEX)
    n = ((pid % (GROUP * num_n) // band) * BLOCK_N + tl.arange(0, BLOCK_N)).to(INDEX)
    k = tl.arange(0, BLOCK_K)
    # A batch of scores may have more elements than 32 bits count.
    batch = tl.program_id(1).to(tl.int64)

    a_ptrs = a_ptr + batch * a_batch + m[:, None] * a_m + k[None, :] * a_k
    b_ptrs = b_ptr + batch * b_batch + k[:, None] * b_k + n[None, :] * b_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        a = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < left) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=ACC)
        a_ptrs += BLOCK_K * a_k
        b_ptrs += BLOCK_K * b_k
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + n * bias_n, mask=n < N, other=0.0).to(ACC)[None, :]
    if ACTIVATION is not None:
        acc = ACTIVATION(acc)
    c_ptrs = c_ptr + batch * c_batch + m[:, None] * c_m + n[None, :] * c_n
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def gemm_blocks(m: int, n: int, itemsize: int) -> dict[str, int]:
    """Return the tile of a GEMM: at most 128 x 128 of C, and 128 bytes along K."""
    return {
        "BLOCK_M": block(m, 16, 128),
        "BLOCK_N": block(n, 16, 128),
        "BLOCK_K": max(128 // itemsize, 16),
    }


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    activation: str | None = None,
    input_precision: str = "ieee",
) -> Tensor:
    """Return ``activation(a @ b + bias)``, summed in float32 and rounded once at the end.

    Shapes are as in ``torch.matmul``: vectors, matrices, and batches that broadcast. Views are
    read through their strides, without a copy. ``activation`` is one of ``"gelu"`` (tanh form),
    ``"relu"`` and ``"silu"``. ``input_precision`` is ``tl.dot``'s, for operands of float32. After
    :func:`~kernbench.ops.use_tiles` a library picks the tile. Operands of ``int8`` need an ``out``
    of ``int32``, in which they are summed.

    Raises:
        UsageError: Sizes, dtypes or ``out`` do not fit; names both.
    """
    choose = chosen_tiles(a.context)
    if choose is not None and input_precision == "ieee":
        tiled = _by_library(a, b, bias, out, activation, choose)
        if tiled is not None:
            return tiled
    a_shape = a.shape
    key = (
        a_shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype,
        None if bias is None else (bias.shape, bias.stride(), bias.dtype),
        None if out is None else (out.shape, out.stride(), out.dtype), activation, input_precision,
        # The kernel of a single row is the machine's choice.
        a.context.machine if len(a_shape) < 2 or a_shape[-2] == 1 else None,
    )  # fmt: skip
    known = _PREPARED.get(key)
    if known is not None:
        shape, prepared = known
        if out is None:
            out = new_result(shape, a.dtype, a)
        prepared.launch("matmul", (a, b, bias, out), out.context)
        return out
    _check(a, b, bias, out, activation)
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    shape = batch + a.shape[-2:-1] + (b.shape[-1:] if len(b.shape) > 1 else ())
    if out is None:
        out = new_result(shape, a.dtype, a)
    elif out.shape != shape:
        raise UsageError(f"matmul gives shape {shape}, but out has {out.shape}")
    if 0 in shape:
        return out
    layout = build_layout(
        a.shape, a.stride(), b.shape, b.stride(), out.stride(), batch, a.dtype.itemsize
    )
    if layout is None:
        return _batch_by_batch(a, b, bias, out, activation, input_precision)
    tensors = (a, b, bias, out)
    launch = _launch(layout, tensors, activation, input_precision)
    prepared = prepare(
        launch.kernel, tensors, launch.numbers, launch.grid, dict(launch.constants),
        num_stages=launch.num_stages,
    )  # fmt: skip
    _PREPARED.keep(key, (shape, prepared))
    prepared.launch("matmul", tensors, out.context)
    return out


def _launch(
    layout: GemmLayout,
    tensors: tuple[Tensor, Tensor, Tensor | None, Tensor],
    activation: str | None,
    input_precision: str,
) -> ProductLaunch:
    a, _, bias, _ = tensors
    bias_n = 0 if bias is None else bias.stride()[0]
    numbers = (*layout.sizes, *layout.a_strides, *layout.b_strides, bias_n, *layout.c_strides)
    constants = {
        "ACTIVATION": ACTIVATIONS[activation],
        "ACC": _accumulator(a.dtype),
        "GROUP": GROUP_M,
        "PRECISION": input_precision,
        "INDEX": index_type(*tensors),
        **layout.blocks,
    }
    plain = ProductLaunch(gemm, numbers, layout.grid, tuple(constants.items()), NUM_STAGES)
    m, n, k = layout.sizes
    if m > 1 or len(layout.grid) > 1 or 0 in layout.sizes:
        return plain
    product = RowProduct(
        n=n,
        k=k,
        strides=(*layout.a_strides[1:], *layout.b_strides[1:], bias_n, *layout.c_strides[1:]),
        activation=ACTIVATIONS[activation],
        accumulator=_accumulator(a.dtype),
        types=tuple(None if tensor is None else tensor.dtype for tensor in tensors),
    )
    return fastest_launch(plain, product, a.context.machine)


def _by_library(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    activation: str | None,
    choose: TileChoice,
) -> Tensor | None:
    """Return the product with the tile of a library; None unless it is one of matrices."""
    _check(a, b, bias, out, activation)
    shape = a.shape[:-1] + b.shape[-1:]
    if len(b.shape) != 2 or 0 in shape or (out is not None and out.shape != shape):
        return None
    if out is None:
        out = new_result(shape, a.dtype, a)
    layout = build_layout(
        a.shape, a.stride(), b.shape, b.stride(), out.stride(), a.shape[:-2], a.dtype.itemsize
    )
    if layout is None or len(layout.grid) > 1 or layout.c_strides[2] != 1:
        return None
    m, n, k = layout.sizes
    tile = choose(m, n, k, a.dtype, a.context.machine.sip_at(a.sip_id))
    if tile.split_k > 1 and not out.is_contiguous():
        return None
    strides = (*layout.a_strides[1:], *layout.b_strides[1:])
    launch_tiles("matmul", (a, b, out), (m, n, k), strides, layout.c_strides[1], tile)
    if bias is not None or activation is not None:
        bias_activation(out, bias, activation, out)
    return out


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Return ``activation(x @ weight.T + bias)`` with ``weight`` as (out_features, in_features)."""
    if len(weight.shape) != 2:
        raise UsageError(
            f"linear needs a weight of 2 dims (out_features, in_features), but got shape "
            f"{tuple(weight.shape)}"
        )
    return matmul(x, weight.T, bias, out, activation)


def _accumulator(dtype: DType) -> Any:
    return tl.int32 if dtype == int8 else compute_dtype(dtype)


def _check(
    a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None, activation: str | None
) -> None:
    is_of_integers = out is not None and out.dtype == int32 and a.dtype == int8
    for operand in (a, b):
        require_dims("matmul", operand, 1)
        if not is_of_integers:
            require_float("matmul", operand)
    if a.dtype != b.dtype:
        raise UsageError(f"matmul needs equal dtypes, but got {a.dtype} and {b.dtype}")
    inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise UsageError(
            f"matmul of shapes {tuple(a.shape)} and {tuple(b.shape)}: the inner sizes "
            f"{a.shape[-1]} and {inner} differ"
        )
    if bias is not None and tuple(bias.shape) != (b.shape[-1],):
        raise UsageError(
            f"the bias of a matmul with {b.shape[-1]} columns must have shape ({b.shape[-1]},), "
            f"but got {tuple(bias.shape)}"
        )
    if activation not in ACTIVATIONS:
        known = ", ".join(repr(name) for name in ACTIVATIONS)
        raise UsageError(f"activation must be one of {known}, but got {activation!r}")


@dataclass(frozen=True)
class GemmLayout:
    """The arguments of a launch of :func:`gemm` besides its tensors; strides in elements."""

    sizes: Ints
    """M, N, K."""
    a_strides: Ints
    """Strides of a batch entry, a row and a column of a; the same for b and c."""
    b_strides: Ints
    c_strides: Ints
    grid: Ints
    blocks: dict[str, int]


@lru_cache(maxsize=4096)
def build_layout(
    a_shape: Ints,
    a_stride: Ints,
    b_shape: Ints,
    b_stride: Ints,
    c_stride: Ints,
    batch: Ints,
    itemsize: int,
) -> GemmLayout | None:
    """Return the layout of one launch, or None if the batch dims do not merge into one.

    Vectors count as matrices with one row or column. With one matrix ``b`` for the whole batch,
    batch dims become more rows where strides allow.
    """
    m, k = (1, *a_shape)[-2:]
    n = b_shape[-1] if len(b_shape) > 1 else 1
    a_m, a_k = (0, *a_stride)[-2:]
    b_k, b_n = b_stride[-2:] if len(b_shape) > 1 else (b_stride[0], 0)
    c_batch = c_stride[: len(batch)]
    c_m = c_stride[len(batch)] if len(a_shape) > 1 else 0
    c_n = c_stride[-1] if len(b_shape) > 1 else 0
    a_batch = broadcast_strides(a_shape[:-2], a_stride[:-2], batch)
    b_batch = broadcast_strides(b_shape[:-2], b_stride[:-2], batch)
    entries = build_walk(batch, a_batch, b_batch, c_batch)
    if not any(b_batch):
        rows = build_walk((*batch, m), (*a_batch, a_m), (*c_batch, c_m))
        if len(rows.shape) <= 1:
            m = rows.shape[0] if rows.shape else 1
            a_m, c_m = (own[0] if own else 0 for own in rows.strides)
            entries = build_walk((), (), (), ())
    if len(entries.shape) > 1:
        return None
    a_step, b_step, c_step = (own[0] if own else 0 for own in entries.strides)
    blocks = gemm_blocks(m, n, itemsize)
    tiles = triton.cdiv(m, blocks["BLOCK_M"]) * triton.cdiv(n, blocks["BLOCK_N"])
    return GemmLayout(
        sizes=(m, n, k),
        a_strides=(a_step, a_m, a_k),
        b_strides=(b_step, b_k, b_n),
        c_strides=(c_step, c_m, c_n),
        grid=(tiles, *entries.shape),
        blocks=blocks,
    )


def _batch_by_batch(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
    input_precision: str,
) -> Tensor:
    """Launch once per entry of the first batch dim, as the batch dims do not merge."""

    def entry(operand: Any, index: int) -> Any:
        if len(operand.shape) < len(out.shape):
            return operand
        return operand[0 if operand.shape[0] == 1 else index]

    for index in range(out.shape[0]):
        matmul(entry(a, index), entry(b, index), bias, out[index], activation, input_precision)
    return out
