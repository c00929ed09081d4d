"""Rewriting the parts of commands that phase 1 knows, for other programs."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    PROGRAM,
    Dims,
    IndexTile,
    MaskTile,
    Predicate,
    Separable,
    SourceLine,
    Splat,
    Tile,
    conjunction,
    constant,
    fold_terms,
)
from kernbench.dtypes import DType, bool_

Array = npt.NDArray[Any]
Known = TypeVar("Known", Separable, Predicate)
Part = TypeVar("Part")


def with_known(value: Part, change: Callable[[Any], Any]) -> Part:
    """Return a command, or parts of one, with ``change`` applied to integer and boolean tensors.

    Tiles are kept, and unchanged parts remain the same objects.
    """
    if isinstance(value, Separable | Predicate):
        return change(value)  # type: ignore[no-any-return]
    if isinstance(value, tuple):
        changed = tuple(with_known(item, change) for item in value)
        is_same = all(map(operator.is_, changed, value))
        return value if is_same else changed  # type: ignore[return-value]
    if isinstance(value, Tile | DType | SourceLine) or not dataclasses.is_dataclass(value):
        return value
    changes = {}
    for field in dataclasses.fields(value):
        before = getattr(value, field.name)
        after = with_known(before, change)
        if after is not before:
            changes[field.name] = after
    return dataclasses.replace(value, **changes) if changes else value  # type: ignore[type-var]


class NotAlikeError(Exception):
    """Groups differ in more than what phase 1 knows."""


class Joining:
    """Joins the commands of several groups of programs into those of one group.

    ``counts`` are the numbers of programs, and ``order`` are the positions of all programs, one
    group after another, in the joined group.
    """

    def __init__(self, counts: list[int], order: Array) -> None:
        self.counts, self.order = counts, order

    def values(self, parts: list[Any]) -> Any:
        """Return commands (or parts of them) of all groups joined; tiles are those of the first.

        Raises:
            NotAlikeError: Their :func:`outline` differs.
        """
        first = parts[0]
        kind = type(first)
        if isinstance(first, Splat) and all(part == first for part in parts[1:]):
            return first
        if isinstance(first, Splat | IndexTile | MaskTile):
            return self._operand(parts)
        if any(type(part) is not kind for part in parts):
            raise NotAlikeError
        if isinstance(first, Separable):
            return self._numbers(parts)
        if isinstance(first, Predicate):
            return self._flags(parts)
        if isinstance(first, tuple):
            if any(len(part) != len(first) for part in parts):
                raise NotAlikeError
            return tuple(self.values(list(pair)) for pair in zip(*parts, strict=True))
        if isinstance(first, Tile | DType | SourceLine) or not dataclasses.is_dataclass(first):
            return first
        changes = {
            field.name: self.values([getattr(part, field.name) for part in parts])
            for field in dataclasses.fields(first)
        }
        return dataclasses.replace(first, **changes)  # type: ignore[type-var]

    def _operand(self, parts: list[Any]) -> Splat | IndexTile | MaskTile:
        """Return a joined operand that phase 1 knows in all groups, in some as a constant."""
        first: Splat | IndexTile | MaskTile = parts[0]
        kind, *others = {_known_kind(part) for part in parts}
        if others:
            raise NotAlikeError
        if isinstance(first, MaskTile) or kind is bool:
            return MaskTile(self._flags([_as_flags(part) for part in parts]))
        if kind is int:
            return IndexTile(self._numbers([_as_numbers(part) for part in parts]), first.dtype)
        return first

    def _numbers(self, parts: list[Separable]) -> Separable:
        terms: dict[Dims, Array] = {}
        for dims in dict.fromkeys(dims for part in parts for dims in part.terms):
            zero = np.zeros((), dtype=np.int64)
            self._add(terms, dims, [part.terms.get(dims, zero) for part in parts])
        consts = [np.array(part.const, dtype=np.int64) for part in parts]
        if any(part.const != parts[0].const for part in parts):
            self._add(terms, (), consts)
            return fold_terms(parts[0].shape, 0, terms)
        return fold_terms(parts[0].shape, parts[0].const, terms)

    def _flags(self, parts: list[Predicate]) -> Predicate:
        terms: dict[Dims, Array] = {}
        for dims in dict.fromkeys(dims for part in parts for dims in part.terms):
            true = np.ones((), dtype=np.bool_)
            self._add(terms, dims, [part.terms.get(dims, true) for part in parts])
        return conjunction(parts[0].shape, terms)

    def _add(self, terms: dict[Dims, Array], dims: Dims, arrays: list[Array]) -> None:
        """Add the groups' arrays of one term to the joined one, per program if they differ."""
        by_program = bool(dims) and dims[0] == PROGRAM
        if not by_program and all(np.array_equal(item, arrays[0]) for item in arrays):
            target, array = dims, arrays[0]
        else:
            rest = dims[1:] if by_program else dims
            shape = np.broadcast_shapes(
                *(item.shape[1:] if by_program and item.ndim else item.shape for item in arrays)
            )
            rows = [
                np.broadcast_to(item if by_program and item.ndim else item[None], (count, *shape))
                for item, count in zip(arrays, self.counts, strict=True)
            ]
            target, array = (PROGRAM, *rest), np.concatenate(rows)[self.order]
        if target not in terms:
            terms[target] = array
        elif array.dtype == np.bool_:
            terms[target] = terms[target] & array
        else:
            terms[target] = terms[target] + array


def outline(value: Any) -> Any:
    """Return what groups must have in common to be joined: all but what phase 1 knows."""
    if isinstance(value, Splat | IndexTile | MaskTile):
        return _known_kind(value)
    if isinstance(value, tuple):
        return tuple(map(outline, value))
    leaf = isinstance(value, Separable | Predicate | Tile | DType | SourceLine)
    if leaf or not dataclasses.is_dataclass(value):
        return type(value)
    fields = (outline(getattr(value, field.name)) for field in dataclasses.fields(value))
    return (type(value), *fields)


def _known_kind(operand: Any) -> Any:
    """Return what known operands must have in common so that one can represent all programs.

    A float is a constant of the kernel's text: it cannot differ between programs.
    """
    if isinstance(operand, MaskTile):
        return bool
    if isinstance(operand, IndexTile):
        return int
    if not isinstance(operand, Splat):
        return type(operand)
    if operand.dtype.is_floating_point:
        return repr(operand.value)
    return bool if operand.dtype is bool_ else int


def _as_numbers(operand: Splat | IndexTile) -> Separable:
    if isinstance(operand, IndexTile):
        return operand.values
    return Separable(operand.shape, int(operand.value))


def _as_flags(operand: Splat | MaskTile) -> Predicate:
    if isinstance(operand, MaskTile):
        return operand.values
    return constant(bool(operand.value), operand.shape)
