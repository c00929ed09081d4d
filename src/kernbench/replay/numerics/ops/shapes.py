"""Operations that rename, reshape or move the elements of a tile.

Values may have length 1 along an axis whose elements are all equal, so a splat or a broadcast
copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernbench.commands import Math
from kernbench.dtypes import Array
from kernbench.replay.numerics.ops.registry import Function, Numeric


def full(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the value with every tile axis at its full length."""
    if array.shape[1:] == shape:
        return array
    return np.broadcast_to(array, (array.shape[0], *shape))


def same_lead(arrays: tuple[Array, ...]) -> list[Array]:
    """Return the values with equally long program axes."""
    lead = max(len(array) for array in arrays)
    return [
        array if len(array) == lead else np.broadcast_to(array, (lead, *array.shape[1:]))
        for array in arrays
    ]


def _splat(command: Math) -> Function:
    ones = (1,) * len(command.dst.shape)
    return lambda x: x.reshape(len(x), *ones)


def _expand_dims(command: Math) -> Function:
    axis = 1 + int(command.attrs["axis"])
    return lambda x: np.expand_dims(x, axis)


def _reshape(command: Math) -> Function:
    source, result = command.inputs[0].shape, command.dst.shape
    return lambda x: full(x, source).reshape(len(x), *result)


def _trans(command: Math) -> Function:
    order = (0, *(1 + int(axis) for axis in command.attrs["order"]))
    return lambda x: x.transpose(order)


def _join(command: Math) -> Function:
    source = command.inputs[0].shape
    return lambda *parts: np.stack([full(x, source) for x in same_lead(parts)], axis=-1)


def _split(command: Math) -> Function:
    index = int(command.attrs["index"])
    source = command.inputs[0].shape
    return lambda x: full(x, source)[..., index]


def _cat(command: Math) -> Function:
    a_shape, b_shape = (operand.shape for operand in command.inputs)

    def concatenated(a: Array, b: Array) -> Array:
        a, b = same_lead((full(a, a_shape), full(b, b_shape)))
        return np.concatenate([a, b], axis=1)

    return concatenated


def _moved(build: Callable[[Math], Function], *, may_share: bool) -> Numeric:
    return Numeric(build=build, moves=True, may_share=may_share)


TABLE: dict[str, Numeric] = {
    "tt.splat": _moved(_splat, may_share=True),
    "tt.unsplat": _moved(lambda command: lambda x: x.reshape(len(x), -1)[:, 0], may_share=True),
    "tt.broadcast": _moved(lambda command: lambda x: x, may_share=True),
    "tt.expand_dims": _moved(_expand_dims, may_share=True),
    "tt.reshape": _moved(_reshape, may_share=True),
    "tt.view": _moved(_reshape, may_share=True),
    "tt.trans": _moved(_trans, may_share=True),
    "tt.split": _moved(_split, may_share=True),
    "tt.join": _moved(_join, may_share=False),
    "tt.cat": _moved(_cat, may_share=False),
}
