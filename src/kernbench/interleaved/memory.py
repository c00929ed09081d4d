"""The memory that a launch reaches: its arguments, and what addresses in them point to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernbench.dtypes import Array
from kernbench.errors import BadPointerError, UnreachableError, UsageError
from kernbench.memory import Buffer
from kernbench.replay import Frame, OutsideReads, PointerArg

Resolve = Callable[[int], Buffer]
"""From an address to the live buffer that holds it; raises BadPointerError where there is none."""

Params = Sequence[PointerArg | float | int | None]


class LaunchMemory:
    """The frame of a launch, with a parameter index for every buffer that it reaches."""

    def __init__(
        self, name: str, params: Params, resolve: Resolve, outside: OutsideReads | None = None
    ) -> None:
        self.params = params
        pointers = {i: p for i, p in enumerate(params) if isinstance(p, PointerArg)}
        self.is_partial = any(not pointer.buffer.has_data for pointer in pointers.values())
        """Whether contents of memory may be unknown, as the run has no data."""
        self.frame = Frame.on({i: p for i, p in pointers.items() if p.buffer.has_data})
        self.frame.pointers = pointers
        self.frame.changed = False
        self.frame.outside = outside
        self.version = 0
        """Counts the steps that changed memory."""
        self._name = name
        self._resolve = resolve
        self._met: dict[int, int] = {}

    @property
    def reached(self) -> tuple[PointerArg, ...]:
        """Buffers reached through pointers in memory, in the order of their parameter indices."""
        first = len(self.params)
        return tuple(self.frame.pointers[first + i] for i in range(len(self._met)))

    def address(self, param: int) -> int:
        """Return the address that a parameter points to."""
        self.check_pointer(param)
        pointer = self.frame.pointers[param]
        return pointer.buffer.address + pointer.offset_bytes

    def check_pointer(self, param: int) -> None:
        """Refuse an access through a parameter that is not a tensor.

        Raises:
            UsageError: It is not.
        """
        if param not in self.frame.pointers:
            pair = self.params[param] if param < len(self.params) else None
            raise UsageError(
                f"kernel {self._name} reads or writes through parameter {param}, which must be a "
                f"tensor, but got {pair!r}"
            )

    def why_lost(self, address: int) -> str:
        """Return why an address must not be accessed, to follow its name in an error."""
        try:
            self._resolve(address)
        except UnreachableError as error:
            return str(error)
        except BadPointerError:
            pass
        return (
            "belongs to no live tensor; was the tensor freed, or the pointer made in another run?"
        )

    def find(self, address: int) -> int | None:
        """Return the parameter index of the buffer that holds an address, None where none does."""
        try:
            buffer = self._resolve(address)
        except BadPointerError:
            return None
        index = self._met.get(id(buffer))
        if index is None:
            index = self._met[id(buffer)] = len(self.params) + len(self._met)
            frame, pointer = self.frame, PointerArg(buffer)
            frame.pointers[index] = pointer
            if buffer.has_data:
                frame.memory[index] = buffer.bytes
                frame.origin[index] = 0
            else:
                self.is_partial = True
        return index

    def knows(self, param: int) -> bool:
        """Return whether the contents of the memory behind a parameter are known."""
        return param in self.frame.memory

    def forget(self, param: int) -> None:
        """Note that memory was written with unknown values."""
        buffer = self.buffer(param)
        buffer.has_data = False
        for index, pointer in self.frame.pointers.items():
            if pointer.buffer is buffer:
                self.frame.memory.pop(index, None)

    def any_param(self) -> int:
        """Return a parameter index for an access that touches nothing."""
        return next(iter(self.frame.pointers), 0)

    def buffer(self, param: int) -> Buffer:
        return self.frame.pointers[param].buffer

    def find_all(self, addresses: Array) -> Array:
        """Return the parameter index per address, -1 where no buffer holds it."""
        result = np.full(addresses.shape, -1, dtype=np.int64)
        open_ = np.ones(addresses.shape, dtype=np.bool_)
        while open_.any():
            first = int(addresses[open_][0])
            index = self.find(first)
            if index is None:
                open_ &= addresses != first
                continue
            buffer = self.buffer(index)
            inside = open_ & (addresses >= buffer.address) & (addresses < buffer.end)
            result[inside] = index
            open_ &= ~inside & (addresses != first)
        return result

    def shows(self, array: Array) -> bool:
        """Whether an array is a view of the launch's memory."""
        return any(np.may_share_memory(array, memory) for memory in self.frame.memory.values())
