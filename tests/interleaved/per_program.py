"""As much of ``triton.language`` as random kernels use, in numpy and one program after another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


class Pointer:
    """An array's elements at flat indices; it counts in elements, as Triton's pointers do."""

    def __init__(self, array: Any, at: Any = 0) -> None:
        self.array, self.at = array, np.asarray(at)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.array, self.at + offset)


class Tile(np.ndarray):
    """numpy's array with Triton's method for conversions, and division towards zero."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


def _tile(values: Any) -> Any:
    return np.asarray(values).view(Tile)


def load(pointer: Pointer, mask: Any = None, other: Any = 0) -> Any:
    flat = pointer.array.reshape(-1)
    if mask is None:
        return _tile(flat[pointer.at])
    at, active = np.broadcast_arrays(pointer.at, mask)
    return _tile(np.where(active, flat[np.where(active, at, 0)], other).astype(flat.dtype))


def store(pointer: Pointer, value: Any, mask: Any = True) -> None:
    at, value, active = np.broadcast_arrays(pointer.at, value, mask)
    pointer.array.reshape(-1)[at[active]] = value[active]


def language(program: tuple[int, ...]) -> Any:
    """Return what a kernel's text means by ``tl`` in one program."""
    return SimpleNamespace(
        constexpr=int,
        float32=np.float32,
        int32=np.int32,
        int64=np.int64,
        program_id=lambda axis: program[axis],
        arange=lambda low, high: _tile(np.arange(low, high)),
        zeros=lambda shape, dtype: _tile(np.zeros(shape, dtype)),
        cdiv=lambda a, b: -(-int(a) // int(b)),
        minimum=np.minimum,
        maximum=np.maximum,
        where=lambda c, a, b: _tile(np.where(c, a, b)),
        sum=lambda x, axis=None: _tile(np.sum(x, axis=axis)),
        dot=lambda a, b: _tile(a.astype(np.float32) @ b.astype(np.float32)),
        load=load,
        store=store,
    )


def run(text: str, name: str, grid: tuple[int, ...], args: dict[str, Any]) -> None:
    """Run a kernel's text on numpy arrays, which it may write."""
    code = compile(text.replace("@triton.jit", ""), name, "exec")
    pointers = {k: Pointer(v) if isinstance(v, np.ndarray) else v for k, v in args.items()}
    for y in range(grid[1]):
        for x in range(grid[0]):
            # Triton's range takes what a kernel has loaded.
            space = {"tl": language((x, y)), "range": lambda *a: range(*map(int, a))}
            exec(code, space)
            space[name](**pointers)
