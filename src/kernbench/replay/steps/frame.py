"""What a running replay holds: the value of each slot, and the memory behind each parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernbench.commands import Print
from kernbench.memory import Buffer

if TYPE_CHECKING:
    from kernbench.replay.steps.outside import OutsideReads

Array = npt.NDArray[Any]


class PointerArg(NamedTuple):
    """A pointer argument of a launch: ``offset_bytes`` into a buffer."""

    buffer: Buffer
    offset_bytes: int = 0


class Frame:
    """The state of one launch while it runs; nothing of it outlives the launch.

    ``values[slot]`` is an array ``[programs, *tile]``; an axis along which all elements are the
    same may have length 1 (so may the program axis). ``chunk`` counts the chunks of the current
    group and ``num_programs`` is the length of this one; ``iterations[loop_id]`` is the iteration
    that each loop is in.
    """

    __slots__ = (
        "changed",
        "chunk",
        "iterations",
        "memory",
        "num_programs",
        "origin",
        "outside",
        "pointers",
        "printed",
        "state",
        "values",
    )

    def __init__(
        self,
        pointers: dict[int, PointerArg],
        memory: dict[int, Array],
        origin: dict[int, int],
    ) -> None:
        self.pointers = pointers
        self.memory = memory
        self.origin = origin
        """The byte in its memory that each pointer points at."""
        self.values: list[Any] = []
        self.iterations: list[int] = []
        self.changed = True
        """Whether an atomic has changed a byte, for whoever set it to False before."""
        self.printed: list[tuple[Print, tuple[int, int, int], Array, list[Array]]] = []
        """What ``tl.device_print`` was given so far: command, grid, program ids, values."""
        self.outside: OutsideReads | None = None
        """Who hears of loads outside of a buffer, which are zeros then; None makes them errors."""
        self.chunk = 0
        self.num_programs = 1
        self.state: Any = None
        """What a watch of the plan keeps for this launch."""

    @classmethod
    def on(cls, pointers: dict[int, PointerArg]) -> Frame:
        """Return a frame on the contents of the buffers that ``pointers`` point into."""
        return cls(
            pointers,
            {param: pointer.buffer.bytes for param, pointer in pointers.items()},
            {param: pointer.offset_bytes for param, pointer in pointers.items()},
        )


def typed_view(memory: Array, dtype: np.dtype[Any], start: int, end: int) -> Array:
    """Return bytes ``start`` to ``end`` as elements; the length must be a multiple of the item.

    Raises:
        ValueError: The range is not inside the memory.
    """
    if start < 0:
        raise ValueError("range starts before the memory")
    return np.ndarray(((end - start) // dtype.itemsize,), dtype, memory, start)
