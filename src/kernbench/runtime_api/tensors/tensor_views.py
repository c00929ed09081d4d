"""Methods of Tensor that return another view of its memory.

They cost nothing, and writing through a view writes the tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.errors import UsageError
from kernbench.runtime_api.memory.views import (
    as_shape,
    expanded_strides,
    infer_shape,
    normal_dim,
    reshaped_strides,
    transposed,
)
from kernbench.runtime_api.tensors.operators import operators

if TYPE_CHECKING:
    from kernbench.runtime_api.tensors.tensor import Tensor


def view(tensor: Tensor, *shape: Any) -> Tensor:
    """Return the same memory in another shape; one size may be -1.

    Raises:
        UsageError: The sizes do not fit, or the strides would need a copy.
    """
    new_shape = infer_shape(as_shape(shape), tensor.numel())
    strides = reshaped_strides(tensor.shape, tensor._strides, new_shape)
    if strides is None:
        raise UsageError(
            f"view: {tensor.label} with strides {tensor._strides} cannot be viewed as {new_shape} "
            "without a copy; use reshape()"
        )
    return tensor.show(tensor.offset, new_shape, strides)


def flatten(tensor: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return the tensor with consecutive dims merged into one, copied where it cannot be a view."""
    first = normal_dim(start_dim, max(tensor.ndim, 1))
    last = normal_dim(end_dim, max(tensor.ndim, 1))
    return tensor.reshape(*tensor.shape[:first], -1, *tensor.shape[last + 1 :])


def reshape(tensor: Tensor, *shape: Any) -> Tensor:
    """Return the elements in another shape, as a view where that is possible."""
    new_shape = infer_shape(as_shape(shape), tensor.numel())
    strides = reshaped_strides(tensor.shape, tensor._strides, new_shape)
    if strides is None:
        return tensor.contiguous().view(new_shape)
    return tensor.show(tensor.offset, new_shape, strides)


def contiguous(tensor: Tensor) -> Tensor:
    """Return the tensor itself if its elements lie in row-major order, else a copy that does."""
    if tensor.is_contiguous():
        return tensor
    copy = tensor.context.empty(
        tensor.shape, dtype=tensor.dtype, dp=tensor.dp, name=tensor.name, device=tensor.device
    )
    operators().copy_strided(tensor, copy)
    return copy


def permute(tensor: Tensor, *dims: Any) -> Tensor:
    """Return the tensor with its dims in another order."""
    order = [normal_dim(dim, tensor.ndim) for dim in as_shape(dims)]
    if sorted(order) != list(range(tensor.ndim)):
        raise UsageError(f"permute: dims {tuple(order)} must name each of {tensor.ndim} dims once")
    return tensor.show(
        tensor.offset, transposed(order, tensor.shape), transposed(order, tensor._strides)
    )


def transpose(tensor: Tensor, dim0: int, dim1: int) -> Tensor:
    """Return the tensor with two dims exchanged."""
    order = list(range(tensor.ndim))
    first, second = normal_dim(dim0, tensor.ndim), normal_dim(dim1, tensor.ndim)
    order[first], order[second] = order[second], order[first]
    return tensor.permute(order)


def t(tensor: Tensor) -> Tensor:
    """Return the transpose of a matrix.

    Raises:
        UsageError: There are more than two dims.
    """
    if tensor.ndim > 2:
        raise UsageError(f"t() expects at most 2 dims, but {tensor.label} has {tensor.ndim}")
    return tensor.T


def unsqueeze(tensor: Tensor, dim: int) -> Tensor:
    """Return the tensor with a dim of size 1 inserted."""
    at = normal_dim(dim, tensor.ndim + 1)
    return tensor[(slice(None),) * at + (None,)]


def squeeze(tensor: Tensor, dim: int | None = None) -> Tensor:
    """Return the tensor without its dims of size 1, or without the given one if it has size 1."""
    dims = range(tensor.ndim) if dim is None else [normal_dim(dim, tensor.ndim)]
    kept = [d for d in range(tensor.ndim) if d not in dims or tensor.shape[d] != 1]
    return tensor.show(
        tensor.offset, transposed(kept, tensor.shape), transposed(kept, tensor._strides)
    )


def expand(tensor: Tensor, *shape: Any) -> Tensor:
    """Return the tensor with dims of size 1 repeated, without a copy; -1 keeps a size."""
    sizes = as_shape(shape)
    missing = len(sizes) - tensor.ndim
    new_shape = tuple(
        tensor.shape[d - missing] if size == -1 and d >= missing else size
        for d, size in enumerate(sizes)
    )
    return tensor.show(
        tensor.offset, new_shape, expanded_strides(tensor.shape, tensor._strides, new_shape)
    )


def narrow(tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return ``length`` entries along ``dim`` from ``start`` on.

    Raises:
        UsageError: They are not all there.
    """
    at = normal_dim(dim, tensor.ndim)
    if start < 0 or length < 0 or start + length > tensor.shape[at]:
        raise UsageError(
            f"narrow: entries {start} to {start + length} of dim {at} were asked for, "
            f"but {tensor.label} has {tensor.shape[at]}"
        )
    return tensor[(slice(None),) * at + (slice(start, start + length),)]


def split(tensor: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of ``size`` entries along ``dim`` each; the last may have fewer."""
    at = normal_dim(dim, tensor.ndim)
    if size < 1:
        raise UsageError(f"split: size must be at least 1, but got {size}")
    total = tensor.shape[at]
    return tuple(
        tensor.narrow(at, start, min(size, total - start)) for start in range(0, total, size)
    )


def chunk(tensor: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return at most ``chunks`` views of equal size along ``dim``; the last may be smaller."""
    if chunks < 1:
        raise UsageError(f"chunk: chunks must be at least 1, but got {chunks}")
    return tensor.split(max(-(-tensor.size(dim) // chunks), 1), dim)


def unbind(tensor: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return one view per entry of ``dim``, without that dim."""
    at = (slice(None),) * normal_dim(dim, tensor.ndim)
    return tuple(tensor[(*at, index)] for index in range(tensor.size(dim)))
