"""The part of ``triton.language`` that random kernels use, in numpy, one program after another.

The same source runs here and through Triton: an oracle that shares nothing with kernbench.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pointer:
    """Places in a flat array."""

    array: Array
    at: Any

    def __add__(self, steps: Any) -> Pointer:
        return Pointer(self.array, self.at + steps)


def load(pointer: Pointer, mask: Any = None, other: Any = 0) -> Any:
    at = np.asarray(pointer.at)
    if mask is None:
        return pointer.array[at]
    inside = np.broadcast_to(mask, at.shape)
    result = pointer.array[np.where(inside, at, 0)]
    return np.where(inside, result, np.asarray(other, result.dtype))


def store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    at = np.asarray(pointer.at)
    inside = np.broadcast_to(True if mask is None else mask, at.shape)
    pointer.array[at[inside]] = np.broadcast_to(value, at.shape)[inside]


def atomic_add(pointer: Pointer, value: Any, mask: Any = None) -> None:
    at = np.asarray(pointer.at)
    inside = np.broadcast_to(True if mask is None else mask, at.shape)
    np.add.at(pointer.array, at[inside], np.broadcast_to(value, at.shape)[inside])


def atomic_max(pointer: Pointer, value: Any) -> None:
    np.maximum.at(pointer.array, np.asarray(pointer.at), value)


def dot(a: Array, b: Array, acc: Any = 0, input_precision: str = "ieee") -> Array:
    return a.astype(np.float32) @ b.astype(np.float32) + acc


def gather(tile: Array, index: Array, axis: int) -> Array:
    return np.take_along_axis(tile, index, axis)


def run_programs(
    source: str, arrays: dict[str, Array], grid: tuple[int, int], **argument: Any
) -> None:
    """Execute the kernel ``kernel`` of a source for every program of a grid, on ``arrays``."""
    here = [0, 0]
    language = SimpleNamespace(
        constexpr=int,
        float32=np.float32,
        int32=np.int32,
        program_id=lambda axis: here[axis],
        num_programs=lambda axis: grid[axis],
        arange=lambda start, end: np.arange(start, end, dtype=np.int64),
        zeros=lambda shape, dtype: np.zeros(shape, dtype),
        full=lambda shape, value, dtype: np.full(shape, value, dtype),
        load=load,
        store=store,
        atomic_add=atomic_add,
        atomic_max=atomic_max,
        gather=gather,
        cast=lambda tile, dtype: np.asarray(tile).astype(dtype),
        abs=np.abs,
        reshape=np.reshape,
        sort=lambda tile: np.sort(tile, -1),
        argmax=lambda tile, axis: np.argmax(tile, axis),
        broadcast_to=np.broadcast_to,
        dot=dot,
        trans=np.transpose,
        where=np.where,
        maximum=np.maximum,
        minimum=np.minimum,
        sum=lambda tile, axis: np.sum(tile, axis),
        max=lambda tile, axis: np.max(tile, axis),
        cumsum=lambda tile, axis: np.cumsum(tile, axis),
        debug_barrier=lambda: None,
    )
    names: dict[str, Any] = {
        "tl": language,
        "triton": SimpleNamespace(jit=lambda kernel: kernel),
    }
    exec(source.replace("import ", "# import "), names)
    kernel: Callable[..., None] = names["kernel"]
    pointers = {name: Pointer(array, 0) for name, array in arrays.items()}
    for second, first in product(range(grid[1]), range(grid[0])):
        here[:] = first, second
        kernel(**pointers, **argument)
