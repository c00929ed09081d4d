"""Products whose operands a GPU's library refuses, and the CPU's, which computes for it, takes.

Source: ``_int_mm_out_cuda``, ``_scaled_mm_out_cuda`` and ``_scaled_gemm`` of PyTorch's
``aten/src/ATen/native/cuda``; cuBLAS documentation, ``cublasLtMatmul``, on 8-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kernbench.hardware import MachineSpec
from kernbench.torch_bridge.base.operations import Operation
from kernbench.torch_bridge.base.refusals import RefusedOperandsError
from kernbench.torch_bridge.placement.residence import residence_of

_MOST_ROWS_REFUSED = 16
_INTEGERS_STEP, _FLOATS_STEP = 8, 16
_OLDEST_OF_BLOCKS = 100
"""Compute capability from which on blocks of 32 elements have scales of their own."""
_ANY_LAYOUT = range(100, 120)
"""Compute capabilities whose library multiplies 8-bit floats in any layout: 10.x and 11.x."""


def _integers(a: Tensor, b: Tensor, spec: MachineSpec) -> str:
    """Return what ``torch._int_mm`` refuses, empty if nothing."""
    if a.size(0) <= _MOST_ROWS_REFUSED:
        return (
            f"self.size(0) needs to be greater than {_MOST_ROWS_REFUSED}, but got {a.size(0)}; "
            "pad the rows, or multiply few rows in float16"
        )
    for name, size in (("self.size(1)", a.size(1)), ("mat2.size(1)", b.size(1))):
        if not size or size % _INTEGERS_STEP:
            return (
                f"{name} needs to be greater than 0 and a multiple of {_INTEGERS_STEP}, but got "
                f"{size}; pad with zeros"
            )
    return ""


def _floats(a: Tensor, b: Tensor, spec: MachineSpec) -> str:
    """Return what ``torch._scaled_mm`` refuses of 8-bit floats, empty if nothing."""
    if a.dtype.itemsize != 1 or not a.dtype.is_floating_point or not (a.numel() and b.numel()):
        return ""
    (m, k), n = a.shape, b.size(1)
    if k % _FLOATS_STEP:
        return (
            f"Expected trailing dimension of mat1 to be divisible by {_FLOATS_STEP} but got mat1 "
            f"shape: ({m}x{k}); pad with zeros"
        )
    if n % _FLOATS_STEP:
        return f"mat2 shape ({k}x{n}) must be divisible by {_FLOATS_STEP}; pad with zeros"
    if spec.cuda_architecture in _ANY_LAYOUT:
        return ""
    if _is_by_columns(a):
        return (
            f"self must be row_major, got stride {a.stride()}: only products of row-major and "
            "column-major matrices are supported by cuBLASLt; call .contiguous() on it"
        )
    if not _is_by_columns(b):
        return (
            f"mat2 must be col_major, got stride {b.stride()}: only products of row-major and "
            "column-major matrices are supported by cuBLASLt; keep mat2 as (N, K) and pass "
            "mat2.t()"
        )
    return ""


def _is_by_columns(matrix: Tensor) -> bool:
    return matrix.stride(0) == 1 and matrix.stride(1) >= max(1, matrix.size(0))


# By full name: every call is looked up, and the hash of an overload is slow Python.
_REFUSALS: Mapping[str, Callable[[Tensor, Tensor, MachineSpec], str]] = {
    "aten._int_mm.default": _integers,
    "aten._int_mm.out": _integers,
    "aten._scaled_mm.default": _floats,
    "aten._scaled_mm.out": _floats,
    "aten._scaled_mm_v2.default": _floats,
    "aten._scaled_mm_v2.out": _floats,
}


_OF_FLOATS: Mapping[str, str] = {
    f"aten.{name}.{overload}": f'"{kernels}"'
    for name, kernels in (
        ("mm", "addmm_cuda"),
        ("addmm", "addmm_cuda"),
        ("bmm", "baddbmm_cuda"),
        ("baddbmm", "baddbmm_cuda"),
        ("mv", "addmv_impl_cuda"),
        ("addmv", "addmv_impl_cuda"),
        ("dot", "dot"),
    )
    for overload in ("default", "out")
}
"""Products that GPUs have of floats only, and what PyTorch calls their kernels."""
_NAMES = {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
}


def check_operands(operation: Operation, args: Any, spec: MachineSpec) -> None:
    """Refuse operands that kernels of a machine's GPU do not take, in the words of PyTorch.

    Raises:
        RefusedOperandsError: The operation does not take them.
    """
    if operation.has_host_results and residence_of(args[1]) is not None:
        raise RefusedOperandsError(
            "'lengths' argument should be a 1D CPU int64 tensor, but it is on a device; hand it "
            "lengths.cpu()"
        )
    kernels = _OF_FLOATS.get(operation.full_name)
    if kernels is not None:
        dtype = args[0].dtype
        is_of_floats = dtype.is_floating_point or dtype.is_complex
        if spec.cuda_architecture is not None and not is_of_floats:
            raise RefusedOperandsError(
                f"{kernels} not implemented for '{_NAMES.get(dtype, dtype)}': GPUs multiply "
                f"matrices of floats, but these are of {dtype}; cast them, or multiply int8 by "
                "torch._int_mm"
            )
        return
    refusal = _REFUSALS.get(operation.full_name)
    if refusal is None:
        return
    a, b = args[:2]
    if a.dim() == b.dim() == 2 and (why := refusal(a, b, spec) or _blocks(args[2:], spec)):
        raise RefusedOperandsError(f"torch.{operation.name.removeprefix('aten.')}: {why}")


def _blocks(scales: tuple[Any, ...], spec: MachineSpec) -> str:
    """Return why a GPU has no products whose scales are powers of two, empty if it has."""
    is_old = spec.cuda_architecture is not None and spec.cuda_architecture < _OLDEST_OF_BLOCKS
    if not is_old or not scales or getattr(scales[0], "dtype", None) is not torch.float8_e8m0fnu:
        return ""
    return (
        "scales of float8_e8m0fnu, one for each 32 elements (MX formats), need a GPU of compute "
        f"capability 10.0 or later, but this one has {spec.cuda_architecture}; give a float32 "
        "scale for each row and column"
    )
