"""The state of a running replay: the value of each slot, and the memory of each parameter."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernbench.commands import Print
from kernbench.dtypes import Array
from kernbench.memory import Buffer
from kernbench.replay.steps.outside import OutsideReads


class PointerArg(NamedTuple):
    """A pointer argument of a launch: ``offset_bytes`` into a buffer."""

    buffer: Buffer
    offset_bytes: int = 0


class Frame:
    """The state of one running launch, discarded at its end.

    ``values[slot]`` is an array ``[programs, *tile]``; an axis along which all elements are equal
    may have length 1 (so may the program axis). ``chunk`` is the index of the current chunk of the
    group and ``num_programs`` its length; ``iterations[loop_id]`` is the current iteration of each
    loop.
    """

    __slots__ = (
        "changed", "chunk", "iterations", "memory", "num_programs", "origin", "outside", "pointers",
        "printed", "state", "values",
    )  # fmt: skip

    def __init__(
        self, pointers: dict[int, PointerArg], memory: dict[int, Array], origin: dict[int, int]
    ) -> None:
        self.pointers = pointers
        self.memory = memory
        self.origin = origin
        """The byte in its memory that each pointer points at."""
        self.values: list[Any] = []
        self.iterations: list[int] = []
        self.changed = True
        """Whether an atomic has changed a byte since a reader set it to False."""
        self.printed: list[tuple[Print, tuple[int, int, int], Array, list[Array]]] = []
        """Calls of ``tl.device_print`` so far: command, grid, program ids, values."""
        self.outside: OutsideReads | None = None
        """Is notified of loads outside of a buffer, which give zeros; None makes them errors."""
        self.chunk = 0
        self.num_programs = 1
        self.state: Any = None
        """The data of the plan's watch for this launch."""

    @classmethod
    def on(cls, pointers: dict[int, PointerArg]) -> Frame:
        """Return a frame on the bytes of the buffers that ``pointers`` point into."""
        return cls(
            pointers,
            {param: pointer.buffer.bytes for param, pointer in pointers.items()},
            {param: pointer.offset_bytes for param, pointer in pointers.items()},
        )


def typed_view(memory: Array, dtype: np.dtype[Any], start: int, end: int) -> Array:
    """Return bytes ``start`` to ``end`` as elements; the length must be a multiple of their size.

    Raises:
        ValueError: The range is not inside the memory.
    """
    if start < 0:
        raise ValueError("range starts before the memory")
    return np.ndarray(((end - start) // dtype.itemsize,), dtype, memory, start)
