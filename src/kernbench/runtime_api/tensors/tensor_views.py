"""Tensor methods that show the same memory in another way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from kernbench.errors import UsageError
from kernbench.runtime_api.memory.views import (
    as_shape,
    expanded_strides,
    indexed,
    infer_shape,
    normal_dim,
    reshaped_strides,
    transposed,
)
from kernbench.runtime_api.tensors.tensor_base import TensorBase


class TensorViews(TensorBase):
    """Views. They cost nothing, and writing through one writes the tensor."""

    __slots__ = ()

    def view(self, *shape: Any) -> Self:
        """Return the same memory in another shape; one size may be -1.

        Raises:
            UsageError: The sizes do not fit, or the strides would need a copy.
        """
        new_shape = infer_shape(as_shape(shape), self.numel())
        strides = reshaped_strides(self.shape, self._strides, new_shape)
        if strides is None:
            raise UsageError(
                f"view: {self.label} with strides {self._strides} cannot be seen as {new_shape} "
                "without a copy; use reshape()"
            )
        return self.show(self.offset, new_shape, strides)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Return the tensor with a run of dims merged into one (a copy where a view cannot)."""
        first = normal_dim(start_dim, max(self.ndim, 1))
        last = normal_dim(end_dim, max(self.ndim, 1))
        return self.reshape(*self.shape[:first], -1, *self.shape[last + 1 :])

    def reshape(self, *shape: Any) -> Self:
        """Return the elements in another shape, as a view where that is possible."""
        new_shape = infer_shape(as_shape(shape), self.numel())
        strides = reshaped_strides(self.shape, self._strides, new_shape)
        if strides is None:
            return self.contiguous().view(new_shape)
        return self.show(self.offset, new_shape, strides)

    def contiguous(self) -> Self:
        """Return the tensor itself if its elements lie in row-major order, else such a copy."""
        if self.is_contiguous():
            return self
        copy = self.context.empty(
            self.shape, dtype=self.dtype, dp=self.dp, name=self.name, device=self.device
        )
        self.context.copy_strided(self, copy)
        return copy  # type: ignore[return-value]

    def permute(self, *dims: Any) -> Self:
        """Return the tensor with its dims in another order."""
        order = [normal_dim(dim, self.ndim) for dim in as_shape(dims)]
        if sorted(order) != list(range(self.ndim)):
            raise UsageError(
                f"permute: dims {tuple(order)} must name each of {self.ndim} dims once"
            )
        return self.show(
            self.offset, transposed(order, self.shape), transposed(order, self._strides)
        )

    def transpose(self, dim0: int, dim1: int) -> Self:
        """Return the tensor with two dims exchanged."""
        order = list(range(self.ndim))
        first, second = normal_dim(dim0, self.ndim), normal_dim(dim1, self.ndim)
        order[first], order[second] = order[second], order[first]
        return self.permute(order)

    def t(self) -> Self:
        """Return the transpose of a matrix.

        Raises:
            UsageError: There are more than two dims.
        """
        if self.ndim > 2:
            raise UsageError(f"t() expects at most 2 dims, but {self.label} has {self.ndim}")
        return self.T

    @property
    def T(self) -> Self:  # noqa: N802 - torch's name
        return self.permute(list(range(self.ndim))[::-1])

    @property
    def mT(self) -> Self:  # noqa: N802 - torch's name
        return self.transpose(-2, -1)

    def unsqueeze(self, dim: int) -> Self:
        """Return the tensor with a dim of size 1 inserted."""
        at = normal_dim(dim, self.ndim + 1)
        return self[(slice(None),) * at + (None,)]

    def squeeze(self, dim: int | None = None) -> Self:
        """Return the tensor without its dims of size 1, or without the given one if it is."""
        dims = range(self.ndim) if dim is None else [normal_dim(dim, self.ndim)]
        kept = [d for d in range(self.ndim) if d not in dims or self.shape[d] != 1]
        return self.show(self.offset, transposed(kept, self.shape), transposed(kept, self._strides))

    def expand(self, *shape: Any) -> Self:
        """Return the tensor with dims of size 1 repeated, without a copy; -1 keeps a size."""
        sizes = as_shape(shape)
        missing = len(sizes) - self.ndim
        new_shape = tuple(
            self.shape[d - missing] if size == -1 and d >= missing else size
            for d, size in enumerate(sizes)
        )
        return self.show(
            self.offset, new_shape, expanded_strides(self.shape, self._strides, new_shape)
        )

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """Return ``length`` entries along ``dim`` from ``start`` on.

        Raises:
            UsageError: They are not all there.
        """
        at = normal_dim(dim, self.ndim)
        if start < 0 or length < 0 or start + length > self.shape[at]:
            raise UsageError(
                f"narrow: entries {start} to {start + length} of dim {at} were asked, "
                f"but {self.label} has {self.shape[at]}"
            )
        return self[(slice(None),) * at + (slice(start, start + length),)]

    def split(self, size: int, dim: int = 0) -> tuple[Self, ...]:
        """Return views of ``size`` entries along ``dim`` each; the last may have fewer."""
        at = normal_dim(dim, self.ndim)
        if size < 1:
            raise UsageError(f"split: size must be at least 1, but got {size}")
        total = self.shape[at]
        return tuple(
            self.narrow(at, start, min(size, total - start)) for start in range(0, total, size)
        )

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """Return at most ``chunks`` views of equal size along ``dim``; the last may be smaller."""
        if chunks < 1:
            raise UsageError(f"chunk: chunks must be at least 1, but got {chunks}")
        return self.split(max(-(-self.size(dim) // chunks), 1), dim)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return one view per entry of ``dim``, without that dim."""
        at = (slice(None),) * normal_dim(dim, self.ndim)
        return tuple(self[(*at, index)] for index in range(self.size(dim)))

    def __iter__(self) -> Iterator[Self]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind())

    def __getitem__(self, index: Any) -> Self:
        offset, shape, strides = indexed(self.offset, self.shape, self._strides, index)
        return self.show(offset, shape, strides)
