"""Strands that did alike become one group again, so that the scheduler times them once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    PROGRAM,
    Dims,
    Predicate,
    ProgramGroup,
    Separable,
    SourceLine,
    Tile,
    conjunction,
    fold_terms,
)
from kernbench.dtypes import DType
from kernbench.replay.interleaved.recording import look

Array = npt.NDArray[Any]


def merge_groups(groups: Sequence[ProgramGroup]) -> tuple[ProgramGroup, ...]:
    """Return the groups, those whose commands look alike as one, by their lowest program."""
    alike: dict[Any, list[ProgramGroup]] = {}
    for group in groups:
        key = tuple(look(command, whole=True) for command in group.body)
        alike.setdefault(key, []).append(group)
    merged = [_merge(same) if len(same) > 1 else same[0] for same in alike.values()]
    merged.sort(key=lambda group: int(group.program_ids[0]))
    return tuple(merged)


def _merge(groups: list[ProgramGroup]) -> ProgramGroup:
    ids = np.concatenate([group.program_ids for group in groups])
    merging = _Merging([len(group.program_ids) for group in groups], np.argsort(ids))
    body = merging.values([group.body for group in groups])
    return ProgramGroup(np.sort(ids), body)


class _Merging:
    def __init__(self, counts: list[int], order: Array) -> None:
        self.counts, self.order = counts, order

    def values(self, parts: list[Any]) -> Any:
        """Return commands (or parts of them) of all groups as one."""
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
