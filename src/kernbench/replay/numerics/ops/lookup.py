"""``tt.gather`` and ``tt.histogram`` on arrays, whose indices and values lie where they must."""

from __future__ import annotations

import numpy as np

from kernbench.commands import Math
from kernbench.dtypes import Array
from kernbench.replay.numerics.conversions import as_unsigned
from kernbench.replay.numerics.ops.registry import Function, Numeric
from kernbench.replay.numerics.ops.shapes import full, same_lead


def _gather(command: Math) -> Function:
    axis = 1 + int(command.attrs["axis"])
    source, where = (operand.shape for operand in command.inputs)

    def gathered(x: Array, index: Array) -> Array:
        x, index = same_lead((full(x, source), full(widened(index), where)))
        return np.take_along_axis(x, index, axis)

    return gathered


def _histogram(command: Math) -> Function:
    (bins,) = command.dst.shape
    source, result = command.inputs[0].shape, command.dst.dtype.numpy

    def counted(x: Array, mask: Array | None = None) -> Array:
        if mask is None:
            (x,) = same_lead((full(x, source),))
            inside = (x >= 0) & (x < bins)
        else:
            x, mask = same_lead((full(x, source), full(mask, source)))
            inside = (x >= 0) & (x < bins) & mask
        return np.stack(
            [np.bincount(row[ok], minlength=bins) for row, ok in zip(x, inside, strict=True)]
        ).astype(result)

    return counted


def widened(index: Array) -> Array:
    """Return the indices of a gather as a GPU reads them: short ones without a sign.

    Source: Triton, ``GatherOpToLLVM.cpp``.
    """
    return as_unsigned(index) if index.dtype.itemsize < _WHOLE_BYTES else index


_WHOLE_BYTES = 4

TABLE: dict[str, Numeric] = {
    "tt.gather": Numeric(build=_gather, moves=True),
    "tt.histogram": Numeric(build=_histogram, moves=True),
}
