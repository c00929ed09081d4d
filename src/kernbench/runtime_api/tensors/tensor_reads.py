"""Methods of Tensor that bring data to the host: each a registered host read (ADR-0027 D0.5)."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kernbench.dtypes import Array
from kernbench.errors import UsageError
from kernbench.runtime_api.tensors.host_read import read

if TYPE_CHECKING:
    from kernbench.runtime_api.tensors.tensor import Tensor


_CORNER = 8
"""Rows and columns of a tensor that a notebook shows."""


def numpy(tensor: Tensor) -> Array:
    """Return a copy of the elements as a numpy array."""
    return read(tensor, "numpy").copy()


def cpu(tensor: Tensor) -> HostArray:
    """Return a copy of the elements on the host: a numpy array that also has ``numpy()``."""
    return read(tensor, "cpu").copy().view(HostArray)


def item(tensor: Tensor) -> float:
    """Return the only element as a Python number.

    Raises:
        UsageError: There is not exactly one.
    """
    if tensor.numel() != 1:
        raise UsageError(f"item() needs exactly one element, but got {tensor.label}")
    number: float = _as_python(read(tensor, "item").reshape(()))
    return number


def tolist(tensor: Tensor) -> Any:
    """Return the elements as nested lists, or the only one of a 0-d tensor as a number."""
    return _as_python(read(tensor, "tolist"))


def data(tensor: Tensor) -> Array:
    """Return a copy of the elements, for ``tensor.data``."""
    return read(tensor, "data").copy()


def pick(tensor: Tensor, index: Any) -> Tensor:
    """Return a new tensor of what ``tensor[index]`` selects; ``index`` holds an array or a mask."""
    # Which elements an index array selects, and how many, is known to the host only.
    picked = read(tensor, "__getitem__")[_host_index(index)]
    return tensor.context.from_numpy(picked, device=tensor.device)


def describe(tensor: Tensor) -> str:
    """Return the ``repr`` of a tensor, with its elements if they can be read now."""
    head = f"dtype={tensor.dtype}, device='{tensor.device}'"
    if not tensor.context.run.can_read(tensor):
        return f"tensor(shape={tensor.shape}, {head}, no data)"
    values = np.array2string(read(tensor, "__repr__"), separator=", ", prefix="tensor(")
    return f"tensor({values}, {head})"


def describe_html(tensor: Tensor) -> str:
    """Return what a notebook shows: what the tensor is, and the corner of its first elements."""
    head = f"tensor {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
    if not tensor.context.run.can_read(tensor) or tensor.ndim > 2 or not tensor.numel():
        return f"<pre>{escape(head)}\n{escape(describe(tensor))}</pre>"
    rows = np.atleast_2d(read(tensor, "__repr__"))
    corner = rows[:_CORNER, :_CORNER]
    shown = [
        [f"{value:.6g}" if isinstance(value, float) else str(value) for value in row]
        for row in _as_python(corner)
    ]
    if rows.shape[1] > _CORNER:
        shown = [[*row, "\u2026"] for row in shown]
    if rows.shape[0] > _CORNER:
        shown.append(["\u2026"] * len(shown[0]))
    cells = "".join(
        "<tr>" + "".join(f'<td style="text-align:right">{name}</td>' for name in row) + "</tr>"
        for row in shown
    )
    return f"<p>{escape(head)}</p><table>{cells}</table>"


def _as_python(array: Array) -> Any:
    # numpy's own tolist() leaves elements of ml_dtypes' types as they are.
    return (array.astype(np.float64) if array.dtype.kind == "V" else array).tolist()


def _host_index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_host_index(item) for item in index)
    return index.numpy() if callable(getattr(index, "numpy", None)) else index


class HostArray(np.ndarray[Any, Any]):
    """A numpy array with the methods that host tensors of PyTorch have beside an array's."""

    def numpy(self) -> Array:
        """Return it as a plain array, of the same memory."""
        return self.view(np.ndarray)

    def cpu(self) -> Self:
        """Return it as it is: it is on the host."""
        return self

    def detach(self) -> Self:
        """Return it as it is: it has no gradients."""
        return self
