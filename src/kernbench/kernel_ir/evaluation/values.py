"""What the evaluator computes with: values that phase 1 knows, and data that it only names.

Known to phase 1, for all programs and loop iterations at once: integers (:class:`Separable`),
booleans (:class:`Predicate`), pointers and descriptors. Data are operands of commands:
tiles, constants and floating-point parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernbench.commands import (
    IndexTile,
    MaskTile,
    Operand,
    Param,
    Predicate,
    Separable,
    Splat,
    Tile,
)
from kernbench.dtypes import DType
from kernbench.kernel_ir.text.ir import Op

ABSOLUTE = -1
"""Parameter index of a pointer that was made from an integer."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Address of parameter ``param`` + ``offset`` bytes + ``gather`` bytes (data, or None)."""

    param: int
    offset: Separable
    gather: Tile | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.offset.shape


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor in memory and the block that is moved at once (``tl.make_tensor_descriptor``).

    ``origin`` is None for a descriptor, whose loads name their position; a block pointer
    (``tl.make_block_ptr``) carries its own.
    """

    base: Pointer
    lengths: tuple[Separable, ...]
    strides: tuple[Separable, ...]
    block: tuple[int, ...]
    dtype: DType
    pads_with_nan: bool = False
    origin: tuple[Separable, ...] | None = None


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """Shared memory as a value: a part of an allocation, seen through transpositions."""

    alloc: Op
    part: Separable | None = None
    """Which of the parts along its first axis; None: all of it."""
    views: tuple[Op, ...] = ()


Known = Separable | Predicate | Pointer | Descriptor
Data = Tile | Splat | Param | IndexTile | MaskTile
Held = Known | Data | SharedBuffer


def is_known(value: Held) -> bool:
    """Whether phase 1 knows the value (a pointer's gather part may still be data)."""
    return isinstance(value, Separable | Predicate | Pointer | Descriptor)


def to_operand(value: Separable | Predicate | Data, dtype: DType) -> Operand:
    """Return a value as an operand of a command on data of element type ``dtype``."""
    if isinstance(value, Separable):
        if value.is_uniform:
            return Splat(value.const, value.shape, dtype)
        return IndexTile(value, dtype)
    if isinstance(value, Predicate):
        if value.is_uniform:
            return Splat(value.is_true, value.shape, dtype)
        return MaskTile(value)
    return value


Leaf = Separable | Predicate


def leaves(value: Known) -> tuple[Leaf, ...]:
    """Return the integer and boolean parts of a known value, in a fixed order."""
    if isinstance(value, Pointer):
        return (value.offset,)
    if isinstance(value, Descriptor):
        return (value.base.offset, *value.lengths, *value.strides, *(value.origin or ()))
    return (value,)


def with_leaves(value: Known, parts: tuple[Leaf, ...]) -> Known:
    """Return ``value`` with other integer and boolean parts, in the order of :func:`leaves`."""
    if isinstance(value, Pointer):
        (offset,) = parts
        assert isinstance(offset, Separable)
        return replace(value, offset=offset)
    if isinstance(value, Descriptor):
        integers = [part for part in parts if isinstance(part, Separable)]
        rank = len(value.lengths)
        return replace(
            value,
            base=replace(value.base, offset=integers[0]),
            lengths=tuple(integers[1 : 1 + rank]),
            strides=tuple(integers[1 + rank : 1 + 2 * rank]),
            origin=None if value.origin is None else tuple(integers[1 + 2 * rank :]),
        )
    (part,) = parts
    return part


def same_frame(a: Known, b: Known) -> bool:
    """Whether two known values differ in their leaves at most, and in a pointer's gather part."""
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        return a.param == b.param
    if isinstance(a, Descriptor) and isinstance(b, Descriptor):
        return (
            a.base.param == b.base.param
            and a.base.gather is b.base.gather
            and (a.block, a.dtype, a.pads_with_nan) == (b.block, b.dtype, b.pads_with_nan)
            and (a.origin is None) == (b.origin is None)
        )
    return type(a) is type(b)


def gather_of(value: Known) -> Tile | None:
    return value.gather if isinstance(value, Pointer) else None
