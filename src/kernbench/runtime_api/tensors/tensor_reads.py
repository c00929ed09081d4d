"""Tensor methods that bring data to the host. Each is a registered host read (ADR-0027 D0.5)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from kernbench.errors import UsageError
from kernbench.runtime_api.memory.storage import Array
from kernbench.runtime_api.memory.views import is_basic_index
from kernbench.runtime_api.tensors.host_read import read
from kernbench.runtime_api.tensors.tensor_views import TensorViews


class TensorReads(TensorViews):
    """Host reads. Each waits for what writes the tensor; see :func:`host_read.read`."""

    __slots__ = ()

    def numpy(self) -> Array:
        """Return a copy of the elements as a numpy array."""
        return read(self, "numpy").copy()

    @property
    def data(self) -> Array:
        """A copy of the elements as a numpy array."""
        return read(self, "data").copy()

    def item(self) -> Any:
        """Return the only element as a Python number.

        Raises:
            UsageError: There is not exactly one.
        """
        if self.numel() != 1:
            raise UsageError(f"item() needs exactly one element, but {self.label} has more or none")
        return _as_python(read(self, "item").reshape(()))

    def tolist(self) -> Any:
        """Return the elements as nested lists, or the only one of a 0-d tensor as a number."""
        return _as_python(read(self, "tolist"))

    def __getitem__(self, index: Any) -> Self:
        if is_basic_index(index):
            return super().__getitem__(index)
        # Which elements an index array selects, and how many, is known to the host only.
        picked = read(self, "__getitem__")[_host_index(index)]
        return self.context.from_numpy(picked, device=self.device)  # type: ignore[return-value]

    def __repr__(self) -> str:
        head = f"dtype={self.dtype}, device='{self.device}'"
        if not self.context.run.can_read(self):
            return f"tensor(shape={self.shape}, {head}, no data)"
        values = np.array2string(read(self, "__repr__"), separator=", ", prefix="tensor(")
        return f"tensor({values}, {head})"

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.is_floating_point:
            raise TypeError(f"only integer tensors can be an index, but got {self.dtype}")
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a tensor's elements cannot be shown without a copy to the host")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)


def _as_python(array: Array) -> Any:
    # numpy's own tolist() leaves elements of ml_dtypes' types as they are.
    return (array.astype(np.float64) if array.dtype.kind == "V" else array).tolist()


def _host_index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_host_index(item) for item in index)
    return index.numpy() if isinstance(index, TensorReads) else index
