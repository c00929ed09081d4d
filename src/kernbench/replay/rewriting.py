"""Commands with other programs: what phase 1 knows in them is changed, all else stays."""

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
    Predicate,
    Separable,
    SourceLine,
    Tile,
    conjunction,
    fold_terms,
)
from kernbench.dtypes import DType

Array = npt.NDArray[Any]
Known = TypeVar("Known", Separable, Predicate)
Part = TypeVar("Part")


def with_known(value: Part, change: Callable[[Any], Any]) -> Part:
    """Return a command, or parts of one, with ``change`` of each integer and boolean tensor.

    Tiles stay what they are, and what does not change is the same object.
    """
    if isinstance(value, Separable | Predicate):
        return change(value)  # type: ignore[no-any-return]
    if isinstance(value, tuple):
        changed = tuple(with_known(each, change) for each in value)
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


class Joining:
    """Puts what several groups of programs do together, as what one group does.

    ``counts`` are the programs of each, and ``order`` places all of them, one group after the
    other, in the group that they become.
    """

    def __init__(self, counts: list[int], order: Array) -> None:
        self.counts, self.order = counts, order

    def values(self, parts: list[Any]) -> Any:
        """Return commands (or parts of them) of all groups as one; tiles are those of the first."""
        first = parts[0]
        if isinstance(first, Separable):
            return self._numbers(parts)
        if isinstance(first, Predicate):
            return self._flags(parts)
        if isinstance(first, tuple):
            return tuple(self.values(list(each)) for each in zip(*parts, strict=True))
        if isinstance(first, Tile | DType | SourceLine) or not dataclasses.is_dataclass(first):
            return first
        changes = {
            field.name: self.values([getattr(part, field.name) for part in parts])
            for field in dataclasses.fields(first)
        }
        return dataclasses.replace(first, **changes)  # type: ignore[type-var]

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
        """Put the groups' arrays of one term together, over the programs if they differ."""
        by_program = bool(dims) and dims[0] == PROGRAM
        if not by_program and all(np.array_equal(each, arrays[0]) for each in arrays):
            target, array = dims, arrays[0]
        else:
            rest = dims[1:] if by_program else dims
            shape = np.broadcast_shapes(
                *(each.shape[1:] if by_program and each.ndim else each.shape for each in arrays)
            )
            rows = [
                np.broadcast_to(each if by_program and each.ndim else each[None], (count, *shape))
                for each, count in zip(arrays, self.counts, strict=True)
            ]
            target, array = (PROGRAM, *rest), np.concatenate(rows)[self.order]
        if target not in terms:
            terms[target] = array
        elif array.dtype == np.bool_:
            terms[target] = terms[target] & array
        else:
            terms[target] = terms[target] + array
