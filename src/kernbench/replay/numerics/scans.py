"""``tt.scan``: inclusive scans, by numpy or by any associative combine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Reduce
from kernbench.replay.numerics.elementwise import NUMERICS
from kernbench.replay.numerics.halves import narrow, widen
from kernbench.replay.numerics.ops.registry import Seen
from kernbench.replay.numerics.ops.shapes import full, same_lead

Array = npt.NDArray[Any]
Combine = Callable[[list[Array], list[Array]], list[Array]]
Scan = Callable[[list[Array]], list[Array]]


def named_scan(command: Reduce) -> Scan | None:
    """Return the scan by a combine for which numpy has a function, or None."""
    numeric = NUMERICS.get(command.combine)
    dtype, shape = command.dsts[0].dtype.numpy, command.inputs[0].shape
    if numeric is None or numeric.combine is None or dtype == np.bool_:
        return None
    if numeric.seen is Seen.AS_UNSIGNED:
        return None
    axis = 1 + command.axis
    accumulate = numeric.combine.accumulate
    backwards = command.scan == "reverse"

    def scanned(inputs: list[Array]) -> list[Array]:
        array = full(inputs[0], shape)
        wide = widen(array) if dtype.kind in "fV" else array
        if backwards:
            wide = np.flip(wide, axis)
        # Without a dtype numpy would sum small integers in 64 bits.
        value = accumulate(wide, axis=axis, dtype=wide.dtype)
        if backwards:
            value = np.flip(value, axis)
        return [narrow(value, dtype)]

    return scanned


def region_scan(command: Reduce, combine: Combine) -> Scan:
    """Return the scan by any associative combine, in log2(length) steps.

    After the step of distance ``d`` an element holds the combination of the ``2 d`` elements up to
    it; operands keep their order. Source: Hillis and Steele, "Data parallel algorithms", CACM
    29(12).
    """
    axis, shape = 1 + command.axis, command.inputs[0].shape
    backwards = command.scan == "reverse"

    def scanned(inputs: list[Array]) -> list[Array]:
        arrays = same_lead(tuple(full(array, shape) for array in inputs))
        parts = [np.moveaxis(array, axis, 0) for array in arrays]
        if backwards:
            parts = [part[::-1] for part in parts]
        distance = 1
        while distance < len(parts[0]):
            joined = combine([p[:-distance] for p in parts], [p[distance:] for p in parts])
            parts = [
                np.concatenate([part[:distance], np.broadcast_to(new, part[distance:].shape)])
                for part, new in zip(parts, joined, strict=True)
            ]
            distance *= 2
        if backwards:
            parts = [part[::-1] for part in parts]
        return [np.moveaxis(part, 0, axis) for part in parts]

    return scanned
