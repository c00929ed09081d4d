"""Products that PyTorch has for GPUs only: half precision to float32, grouped ones, and cuDNN's.

A GPU multiplies them exactly and sums in float32, as the CPU does with operands cast to float32.
Weights of four bits PyTorch packs for GPUs in an order of their own. Here packed ones have the
shape that they have on a GPU, and the elements in the order of the matrix: only two operations read
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.dispatch.known_values import values_of
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.processes.of_all import library_of_all
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.processes.registrations import BACKEND, SHARED, Kernel

_HALVES = (torch.float16, torch.bfloat16)
_GROUPED = torch.ops.aten._grouped_mm.default
_WITH_GROUPS = (9, 10)
"""Major compute capabilities for which PyTorch has a kernel of groups, of bfloat16 alone. Source:
``_grouped_mm_cuda`` of PyTorch's ``aten/src/ATen/native/cuda/GroupedBlas.cpp``."""
_ROW_WISE = 1
"""``torch.nn.functional.ScalingType.RowWise``."""


def install(patches: Patches) -> None:
    """Implement them on the CPU, with shape functions for runs without data."""
    library = library_of_all("aten")
    patches.on_close(library._destroy)
    for key in ("CPU", "Meta"):
        for name, function in {"mm": torch.mm, "bmm": torch.bmm}.items():
            result = partial(_product, function)
            _implement(library, name, result, key)
        for name, function in {"addmm": torch.addmm, "baddbmm": torch.baddbmm}.items():
            result = partial(_sum, function)
            _implement(library, name, result, key)
        library.impl("cudnn_convolution", _convolution, key, allow_override=True)
        library.impl("cudnn_convolution_relu", _convolution_relu, key, allow_override=True)
        library.impl("_scaled_grouped_mm", _scaled_grouped, key, allow_override=True)
        library.impl("_scaled_grouped_mm_v2", _scaled_grouped_v2, key, allow_override=True)
        library.impl("_convert_weight_to_int4pack", _packed, key, allow_override=True)
        library.impl("_weight_int4pack_mm", _int4_product, key, allow_override=True)
    patches.on_close(SHARED.remove_for_all, library)
    SHARED.add("aten::_grouped_mm", BACKEND, Kernel(library, _grouped_on_device, False))


def _implement(library: Any, name: str, call: Callable[..., Tensor], key: str) -> None:
    def into(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        result = call(*args, **kwargs)
        return out.resize_(result.shape).copy_(result)

    library.impl(f"{name}.dtype", call, key, allow_override=True)
    library.impl(f"{name}.dtype_out", into, key, allow_override=True)


def _convolution(
    x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any
) -> Tensor:
    """``torch.cudnn_convolution``; the rest says how cuDNN chooses its kernel."""
    zeros = [0] * len(stride)
    return torch.convolution(x, weight, None, stride, padding, dilation, False, zeros, groups)


def _convolution_relu(
    x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """``torch.cudnn_convolution_relu``, where bias and activation are part of the kernel."""
    zeros = [0] * len(stride)
    tensor = torch.convolution(x, weight, bias, stride, padding, dilation, False, zeros, groups)
    return tensor.relu_()


def _product(function: Callable[..., Tensor], a: Tensor, b: Tensor, out_dtype: Any) -> Tensor:
    _check(a, b, out_dtype)
    return function(a.to(out_dtype), b.to(out_dtype))


def _sum(
    function: Callable[..., Tensor],
    summand: Tensor,
    a: Tensor,
    b: Tensor,
    out_dtype: Any,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Tensor:
    _check(a, b, out_dtype)
    if summand.dtype not in (a.dtype, out_dtype):
        raise RuntimeError(
            f"self must have the type of the operands, {a.dtype}, or out_dtype, {out_dtype}, but "
            f"got {summand.dtype}"
        )
    wide = (item.to(out_dtype) for item in (summand, a, b))
    return function(*wide, beta=beta, alpha=alpha)


def _check(a: Tensor, b: Tensor, out_dtype: Any) -> None:
    if a.dtype != b.dtype:
        raise RuntimeError(f"operands must have one dtype, but got {a.dtype} and {b.dtype}")
    if out_dtype != a.dtype and not (out_dtype == torch.float32 and a.dtype in _HALVES):
        raise RuntimeError(
            "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs, but got "
            f"{out_dtype} for {a.dtype}"
        )


def _grouped_on_device(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,
) -> Tensor:
    """``torch._grouped_mm``: one kernel where PyTorch has one, else a product for each group."""
    process = current()
    capability = process.session.run.machine.spec.cuda_architecture
    dtypes = {a.dtype, b.dtype, out_dtype or a.dtype}
    is_kernel = dtypes == {torch.bfloat16} and (capability or 0) // 10 in _WITH_GROUPS
    if not (offs is None or capability is None or is_kernel or bias is not None):
        return _groups_in_turn(a, b, offs, out_dtype or a.dtype)
    process.registrations.once.add(_GROUPED)
    try:
        tensor: Tensor = _GROUPED(a, b, offs, bias, out_dtype)
    finally:
        process.registrations.once.discard(_GROUPED)
    return tensor


def _groups_in_turn(a: Tensor, b: Tensor, offs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the products of groups as the host calls them once it has read their ends."""
    _check_strides("mat_a", a)
    _check_strides("mat_b", b)
    ends = offs.cpu().tolist()
    of_k = a.dim() == b.dim() == 2
    with unobserved():
        is_known = values_of(offs) is not None
    if not is_known:
        total = a.shape[-1] if of_k else a.shape[0] if a.dim() == 2 else b.shape[1]
        ends = [total * index // len(ends) for index in range(1, len(ends) + 1)]
        current().session.costs.even_groups.add("aten._grouped_mm")
    spans = [slice(*pair) for pair in pairwise((0, *ends))]
    if of_k:
        groups = a.new_empty(len(spans), a.shape[0], b.shape[1], dtype=dtype)
    else:
        groups = a.new_empty(a.shape[-2], b.shape[-1], dtype=dtype)
    for number, span in enumerate(spans):
        if of_k:
            torch.mm(a[:, span], b[span], out=groups[number])
        elif span.start == span.stop:
            # No kernel is launched for a result without elements.
            continue
        elif a.dim() == 2:
            torch.mm(a[span], b[number], out=groups[span])
        else:
            torch.mm(a[number], b[:, span], out=groups[:, span])
    return groups


def _check_strides(name: str, matrix: Tensor) -> None:
    """Refuse what PyTorch refuses of an operand of groups, in its words."""
    last, step = matrix.dim() - 1, 16 // matrix.element_size()
    for long, short in ((last, last - 1), (last - 1, last)):
        stride = matrix.stride(long)
        if matrix.stride(short) == 1 and stride >= max(1, matrix.shape[short]):
            if stride % step:
                raise RuntimeError(
                    f"expected {name} stride along {long} dim to be multiple of 16 bytes, got "
                    f"{stride}; pad its rows"
                )
            return
    raise RuntimeError(
        f"Invalid strides/sizes, got {list(matrix.stride())} for strides and "
        f"{list(matrix.shape)} for sizes; call .contiguous() on {name}"
    )


def _scaled_grouped(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Multiply groups of FP8 rows or columns, with a scale for each row and each column.

    Operands have two or three dims, as in ``torch._grouped_mm``. Scales are ``(M)`` and ``(N)``
    for one matrix, ``(G, M)`` and ``(G, N)`` for several; if K is grouped, those of all groups
    are concatenated.
    """
    if scale_a.dtype != torch.float32 or scale_b.dtype != torch.float32:
        raise UnsupportedTorchError(
            f"torch._scaled_grouped_mm with scales of {scale_a.dtype}: blocks with scales of their "
            "own (MX formats) are not modeled; give a float32 scale for each row and column"
        )
    if bias is not None or scale_result is not None:
        raise RuntimeError("torch._scaled_grouped_mm: bias and scale_result are not supported yet")
    if a.dim() == b.dim() == 2:
        assert offs is not None
        groups = offs.numel()
        wide = _grouped(a.float(), b.float(), offs)
        wide = wide * scale_a.view(groups, -1, 1) * scale_b.view(groups, 1, -1)
    else:
        rows = scale_a.unsqueeze(-1)
        columns = scale_b.unsqueeze(-2) if scale_b.dim() > 1 else scale_b
        wide = _grouped(a.float() * rows, b.float() * columns, offs)
    return wide.to(out_dtype or torch.bfloat16)


def _grouped(a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
    """Return the products of groups in float32; ``offs`` are their ends along the grouped dim."""
    if offs is None:
        return torch.bmm(a, b)
    if offs.is_meta:
        if a.dim() == b.dim() == 2:
            return a.new_empty(offs.numel(), a.shape[0], b.shape[1])
        return a.new_empty(a.shape[-2], b.shape[-1])
    starts = [0, *offs.tolist()]
    spans = [slice(*start) for start in pairwise(starts)]
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, span] @ b[span] for span in spans])
    result = a.new_zeros(a.shape[-2], b.shape[-1])
    for number, item in enumerate(spans):
        if a.dim() == 2:
            result[item] = a[item] @ b[number]
        else:
            result[:, item] = a[number] @ b[:, item]
    return result


def _scaled_grouped_v2(
    a: Tensor,
    b: Tensor,
    scale_a: list[Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,
    contraction_dim: list[int] | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    if list(recipe_a) != [_ROW_WISE] or list(recipe_b) != [_ROW_WISE]:
        raise UnsupportedTorchError(
            "torch.nn.functional.scaled_grouped_mm: only ScalingType.RowWise is modeled"
        )
    return _scaled_grouped(a, b, scale_a[0], scale_b[0], offs, bias, None, out_dtype)


_INNER_TILES = (2, 4, 8)
_GROUPS = (32, 64, 128, 256)
_ROWS, _COLUMNS = 8, 16
"""The shape of a tile of the packed matrix; a row of tiles has so many columns per inner tile."""
_ZERO = 8
"""The integer that is 0, before the group's own zero is added."""


def _packed(weight: Tensor, inner_tiles: int) -> Tensor:
    """Return a matrix ``(n, k / 2)`` of bytes, two elements in each, as a GPU's packed weights."""
    if weight.dtype is not torch.uint8 or weight.dim() != 2:
        raise RuntimeError(
            f"_convert_weight_to_int4pack: expected a matrix of uint8 with two elements in a byte, "
            f"but got {weight.dtype} of shape {tuple(weight.shape)}"
        )
    n, k = weight.shape[0], 2 * weight.shape[1]
    if inner_tiles not in _INNER_TILES:
        raise RuntimeError(f"innerKTiles must be one of {_INNER_TILES}, but got {inner_tiles}")
    columns = inner_tiles * _COLUMNS
    if n % _ROWS or k % columns:
        raise RuntimeError(
            f"a weight of {n} x {k} does not divide into tiles of {_ROWS} x {columns}"
        )
    shape = (n // _ROWS, k // columns, 32, inner_tiles // 2)
    if weight.is_meta:
        return weight.new_empty(shape, dtype=torch.int32)
    return weight.contiguous().view(torch.int32).reshape(shape).clone()


def _int4_product(x: Tensor, packed: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    """Return ``x @ weight.T``, with a scale and a zero for each group of a row's elements."""
    n = packed.shape[0] * _ROWS
    k = packed.shape[1] * packed.shape[3] * 2 * _COLUMNS
    if group not in _GROUPS or x.dim() != 2 or x.shape[1] != k:
        raise RuntimeError(
            f"_weight_int4pack_mm: expected a matrix of {k} columns and groups of one of {_GROUPS},"
            f" but got {tuple(x.shape)} and {group}"
        )
    if tuple(scales_and_zeros.shape) != (k // group, n, 2):
        raise RuntimeError(
            f"_weight_int4pack_mm: expected scales and zeros of shape {(k // group, n, 2)}, but "
            f"got {tuple(scales_and_zeros.shape)}"
        )
    if x.is_meta:
        return x.new_empty(x.shape[0], n)
    pairs = packed.reshape(n, k // 8).view(torch.uint8)
    view = torch.stack((pairs >> 4, pairs & 15), -1).view(n, k // group, group)
    scales, zeros = scales_and_zeros.transpose(0, 1).float().unbind(-1)
    weight = (view.float() - _ZERO) * scales.unsqueeze(-1) + zeros.unsqueeze(-1)
    # Rounded as the kernel holds it, then summed in float32.
    return (x.float() @ weight.view(n, k).to(x.dtype).float().T).to(x.dtype)
