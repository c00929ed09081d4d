"""Errors in one rank's call of a collective, whatever the others call; raised on that rank."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from kernbench.errors import KernbenchError, UsageError
from kernbench.runtime_api import ProcessGroup
from kernbench.torch_bridge.c10d.data import is_of_bits, name_of
from kernbench.torch_bridge.placement.residence import residence_of
from kernbench.torch_bridge.processes.process import current

_OF_BITS = frozenset({"band", "bor", "bxor"})
_OF_IMAGES = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Other layouts that count as contiguous, by the number of dims."""


def check_position(op: str, what: str, position: Any, members: ProcessGroup) -> None:
    """Refuse a rank, counted within a group, that the group does not have.

    Raises:
        UsageError: It has not.
    """
    if not isinstance(position, Integral) or not 0 <= int(position) < members.size():
        raise UsageError(
            f"{op}: there is no {what} {position!r} in group {members.name}, which has "
            f"{members.size()} ranks (0 to {members.size() - 1}, counted in the group)"
        )


def check_list(op: str, what: str, tensors: Sequence[Tensor], like: Tensor, size: int) -> None:
    """Refuse a list that does not hold one tensor per rank of the group, each like a given one.

    Raises:
        UsageError: There are more or fewer, or one has a different shape or dtype.
    """
    check_count(op, what, tensors, size)
    for index, tensor in enumerate(tensors):
        if tensor.shape != like.shape or tensor.dtype is not like.dtype:
            raise UsageError(
                f"{op}: tensor {index} of the {what} list is {_shown(tensor)}, but the rank's own "
                f"tensor is {_shown(like)}; they must be alike"
            )


def check_count(op: str, what: str, tensors: Sequence[Tensor], size: int) -> None:
    """Refuse a list that does not hold one tensor per rank of the group.

    Raises:
        UsageError: There are more or fewer.
    """
    if len(tensors) != size:
        raise UsageError(
            f"{op}: the {what} list has {len(tensors)} tensors, but the group has {size} ranks"
        )


def check_contiguous(op: str, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors of a device whose elements do not lie one after the other, as NCCL does.

    Raises:
        UsageError: One's do not.

    Source: ``check_gpu_single_tensor`` of PyTorch's ``ProcessGroupNCCL.cpp``.
    """
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_contiguous():
            continue
        of_images = _OF_IMAGES.get(tensor.dim())
        if of_images is not None and tensor.is_contiguous(memory_format=of_images):
            continue
        raise UsageError(
            f"{op}: tensors must be contiguous, but one of {_shown(tensor)} has strides "
            f"{tensor.stride()}; call .contiguous() first"
        )


def check_dense(op: str, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors between whose elements there are others: a message would have those.

    PyTorch lets them pass, and NCCL moves as many elements as the tensor has from its first one on.

    Raises:
        UsageError: One is such a tensor.

    Source: ``check_gpu_single_tensor(tensor, p2p=true)`` and ``ProcessGroupNCCL::send``.
    """
    for tensor in tensors:
        if tensor.layout is torch.strided and not _is_dense(tensor):
            raise UsageError(
                f"{op}: NCCL moves the {tensor.numel()} elements that follow each other in memory "
                f"from the first one of {_shown(tensor)} on, but the tensor's own have strides "
                f"{tensor.stride()}; call .contiguous() first"
            )


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor's elements, in some order of its dims, follow each other."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if step != expected:
                return False
            expected *= size
    return True


def check_own(op: str, what: str, tensors: Sequence[Tensor], other: Tensor, position: int) -> None:
    """Refuse a list, of inputs or outputs, whose tensor at the rank's own position does not match.

    ``other`` is the rank's tensor at the other end.

    Raises:
        UsageError: It does not match.
    """
    own, end = tensors[position], {"output": "input", "input": "output"}[what]
    if own.numel() != other.numel():
        raise UsageError(
            f"{op}: the rank's own tensor in the {what} list, at {position}, is {_shown(own)}, but "
            f"its {end} is {_shown(other)}"
        )


def check_whole(what: str, whole: Tensor, part: Tensor, size: int) -> None:
    """Refuse a tensor that does not hold one part per rank of the group.

    Raises:
        UsageError: It does not.
    """
    if whole.numel() != size * part.numel() or whole.dtype is not part.dtype:
        raise UsageError(
            f"{what} must hold {size} x {part.numel()} elements of {part.dtype}, but has shape "
            f"{tuple(whole.shape)} and dtype {whole.dtype}"
        )


def check_reduce_op(called: str, op: Any, tensors: Sequence[Tensor]) -> None:
    """Refuse a reduction that the dtype does not support.

    Raises:
        UsageError: It has not.
    """
    if is_of_bits(op):
        for tensor in tensors:
            if tensor.is_floating_point() or tensor.is_complex():
                raise UsageError(
                    f"{called}: ReduceOp.{name_of(op).upper()} needs integers, but the tensor is "
                    f"{tensor.dtype}"
                )


class NcclTypeError(KernbenchError, TypeError):
    """NCCL has no such elements."""


_NOT_OF_NCCL = frozenset({torch.int16, torch.uint16, torch.uint32, torch.uint64})


def check_nccl(called: str, op: str, tensors: Iterable[Tensor]) -> None:
    """Refuse what NCCL does not do with tensors of devices: combining bits, elements of a type.

    Raises:
        UsageError: It has no such reduction.
        NcclTypeError: It has no such elements, or no mean of them.

    Source: ``getNcclReduceOp`` and ``getNcclDataType`` of PyTorch's ``ProcessGroupNCCL``.
    """
    for tensor in tensors:
        is_mean_of_bools = op == "avg" and tensor.dtype is torch.bool
        is_type = tensor.dtype in _NOT_OF_NCCL or is_mean_of_bools
        if not (is_type or op in _OF_BITS) or residence_of(tensor) is None:
            continue
        if not is_type:
            raise UsageError(
                f"{called}: Cannot use ReduceOp.{op.upper()} with NCCL; use a group of gloo and "
                "tensors of the host, or one of sum, product, min and max"
            )
        what = (
            "Cannot use ReduceOp.AVG with boolean inputs"
            if is_mean_of_bools
            else "Input tensor data type is not supported for NCCL process group: "
            f"{tensor.dtype}; view it as bytes, or convert it"
        )
        raise NcclTypeError(f"{called}: {what}")


class SplitSizesError(KernbenchError, TypeError):
    """Split sizes are no sequence of whole numbers."""


def _whole_numbers(what: str, sizes: Any) -> list[int]:
    """Return split sizes as C++ takes them: any sequence of what Python takes for an index.

    Raises:
        SplitSizesError: They are something else, such as one tensor.
    """
    try:
        if isinstance(sizes, Mapping | Tensor):
            raise TypeError(f"a {type(sizes).__name__} is no sequence of numbers")
        return [operator.index(size) for size in sizes]
    except TypeError as error:
        raise SplitSizesError(
            f"all_to_all_single: {what} split sizes must be a sequence of ints, but got {sizes!r} "
            f"({error}); give a list, as of tolist()"
        ) from None


def cut(what: str, tensor: Tensor, asked: Iterable[SupportsIndex], size: int) -> list[Tensor]:
    """Return the rows of a tensor for each rank of a group, equally many where none are asked for.

    Raises:
        UsageError: The sizes are not one for each rank that add up to its rows.
        SplitSizesError: They are no whole numbers.
    """
    sizes = _whole_numbers(what, asked)
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % size:
            raise UsageError(
                f"all_to_all_single: {what} of {rows} rows does not divide by the group's "
                f"{size} ranks; give split sizes"
            )
        sizes = [rows // size] * size
    if len(sizes) != size or sum(sizes) != rows or min(sizes) < 0:
        unknown = "; counts that depend on data are zeros in a run with --no-data"
        is_unknown = not any(sizes) and not current().session.run.has_data
        raise UsageError(
            f"all_to_all_single: {what} split sizes {sizes} must be {size} numbers that add "
            f"up to {rows} rows{unknown if is_unknown else ''}"
        )
    return list(tensor.detach().split(sizes))


def _shown(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).rpartition('.')[2]}"
