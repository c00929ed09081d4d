"""The values of a strand's programs, and their parts when the strand is split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.commands import PROGRAM, Predicate, Separable, Tile
from kernbench.dtypes import Array
from kernbench.kernel_ir import Descriptor, Held, Pointer
from kernbench.replay import with_known


class PickedRows:
    """An array with a row per program (or one for all), whose rows are selected lazily.

    A strand that waits for a lock is split again and again. Its large tiles are not copied on the
    way, only when they are used.
    """

    __slots__ = ("_array", "_picked")

    def __init__(self, array: Array, picked: Array | None = None) -> None:
        self._array, self._picked = array, picked

    @property
    def array(self) -> Array:
        if self._picked is not None:
            self._array, self._picked = self._array[self._picked], None
        return self._array

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole array behind it."""
        return self._array.nbytes

    def take(self, positions: Array) -> PickedRows:
        """Return the rows of some of the programs."""
        if len(self._array) == 1 and self._picked is None:
            return self
        picked = positions if self._picked is None else self._picked[positions]
        return PickedRows(self._array, picked)


def of_programs(value: Any, positions: Array) -> Any:
    """Return a value, a command or a tuple of them for some of the programs.

    Tiles stay what they are: the data of their slots is split on its own.
    """

    def taken(tensor: Separable | Predicate) -> Separable | Predicate:
        if any(dims and dims[0] == PROGRAM for dims in tensor.terms):
            return tensor.take_programs(positions)
        return tensor

    return with_known(value, taken)


def slots_of(held: Held) -> tuple[int, ...]:
    """Return the slots whose data a value needs."""
    if isinstance(held, Tile):
        return (held.slot,)
    pointer = held.base if isinstance(held, Descriptor) else held
    if isinstance(pointer, Pointer) and pointer.gather is not None:
        return (pointer.gather.slot,)
    return ()


def as_known(array: Array) -> Separable | Predicate:
    """Return a scalar per program that was data in the form that phase 1 has for scalars."""
    if array.dtype == np.bool_:
        if array.all():
            return Predicate(())
        if not array.any() or len(array) == 1:
            return Predicate((), {(): np.zeros((), np.bool_)})
        return Predicate((), {(PROGRAM,): array.copy()})
    numbers = array.astype(np.int64)
    if len(numbers) == 1 or (numbers == numbers[0]).all():
        return Separable((), int(numbers[0]))
    return Separable((), 0, {(PROGRAM,): numbers})


def same(a: tuple[Held, ...], b: tuple[Held, ...], data_of: Callable[[Tile], bytes | None]) -> bool:
    """Whether two lists of values are certainly the same."""
    return len(a) == len(b) and all(_same(x, y, data_of) for x, y in zip(a, b, strict=True))


def _same(a: Held, b: Held, data_of: Callable[[Tile], bytes | None]) -> bool:
    if a is b:
        return True
    if isinstance(a, Separable) and isinstance(b, Separable):
        return a.equals(b)
    if isinstance(a, Predicate) and isinstance(b, Predicate):
        return a.equals(b)
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        return a.param == b.param and a.gather is b.gather and a.offset.equals(b.offset)
    if isinstance(a, Tile) and isinstance(b, Tile):
        data = data_of(a)
        return data is not None and data == data_of(b)
    return False
