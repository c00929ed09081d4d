"""The entries of the dialects' tables: how an operation is computed."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.commands import Math
from kernbench.dtypes import Array, DType
from kernbench.replay.numerics.conversions import (
    as_unsigned,
    convert_into,
    is_narrow,
    narrow,
    widen,
)

Function = Callable[..., Array]
"""A function from the inputs' arrays ``[programs, *tile]`` to the result's."""
Into = Callable[..., Any]
"""Likewise, but it writes into the keyword ``out``, which may share memory with the inputs."""


class Seen(enum.Enum):
    """How the function of an operation sees its operands."""

    AS_THEY_ARE = enum.auto()
    IN_FLOAT32 = enum.auto()
    """Floats narrower than float32 are widened, and the result is rounded."""
    AS_UNSIGNED = enum.auto()
    """Integers are reinterpreted as unsigned; TTIR's integers are signless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric:
    """How one operation is computed."""

    build: Callable[[Math], Function]
    build_into: Callable[[Math], Into | None] = lambda command: None
    """Returns None if the result cannot be written in place."""
    seen: Seen = Seen.AS_THEY_ARE
    combine: np.ufunc | None = None
    """The numpy ufunc for reductions and scans that combine by this operation."""
    moves: bool = False
    """Whether it only renames, reshapes or moves elements, so that it handles shapes itself."""
    may_share: bool = False
    """Whether the result may share its input's memory."""


def plain(function: Function, *, combine: np.ufunc | None = None) -> Numeric:
    """Return an operation that one function computes for all of its element types."""
    into = function if isinstance(function, np.ufunc) else None
    return Numeric(build=lambda _: function, build_into=lambda _: into, combine=combine)


def on_floats(
    function: Function, *, to_narrow: Function | None = None, combine: np.ufunc | None = None
) -> Numeric:
    """Return an operation on floats, computed in float32 for narrower types.

    ``to_narrow`` replaces it there if it must know that its result is rounded again.
    """
    wide = to_narrow or function
    into = function if isinstance(function, np.ufunc) else None

    def rounded_into(*arrays: Array, out: Array) -> None:
        convert_into(wide(*map(widen, arrays)), out)

    return Numeric(
        build=lambda command: in_float32(wide, command.dst.dtype, function),
        build_into=lambda command: rounded_into if is_narrow(command.dst.dtype) else into,
        seen=Seen.IN_FLOAT32,
        combine=combine,
    )


def on_unsigned(function: Function, *, combine: np.ufunc | None = None) -> Numeric:
    """Return an operation on integers that reinterprets their bits as unsigned."""

    def build(command: Math) -> Function:
        result = command.dst.dtype.numpy

        def computed(*arrays: Array) -> Array:
            return function(*map(as_unsigned, arrays)).view(result)

        return computed

    return Numeric(build=build, seen=Seen.AS_UNSIGNED, combine=combine)


def in_float32(wide: Function, dst: DType, function: Function | None = None) -> Function:
    """Return a function that computes in float32 and rounds; for wider types, the original."""
    if not is_narrow(dst):
        return function or wide
    result = dst.numpy

    def computed(*arrays: Array) -> Array:
        return narrow(wide(*map(widen, arrays)), result)

    return computed
