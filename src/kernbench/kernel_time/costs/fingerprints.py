"""Numbers that tell which programs touch the same addresses, and which touch alike ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from types import MappingProxyType

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Atomic,
    DmaRead,
    DmaWrite,
    IndexTile,
    MaskTile,
    Predicate,
    RowTable,
    Separable,
    access_of,
    is_axis,
)
from kernbench.dtypes import Array
from kernbench.kernel_time.program.origins import Loaded, Made, Part, in_order, inputs_of, leaves
from kernbench.kernel_time.program.timed_plan import CommandSite

Dims = tuple[int, ...]

# Odd, so that multiplying by it loses nothing modulo 2**64.
SPREAD = -7046029254386353131
NOTHING_CHOSEN: Mapping[int, Array] = MappingProxyType({})


def mixed(numbers: Array) -> Array:
    """Return numbers of 64 bits that look drawn by chance, by the mixing steps of splitmix64."""
    result = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        result = (result ^ (result >> np.uint64(shift))) * np.uint64(factor)
    return result ^ (result >> np.uint64(31))


def weights(dim: int, length: int) -> Array:
    """Return the numbers that make a vector over ``dim`` into one fingerprint; they add up to 1.

    A sum of terms has the same fingerprint however its numbers are split over the terms.
    """
    first = np.arange(1, length + 1, dtype=np.uint64) + np.uint64(dim << 32)
    view = mixed(first).view(np.int64)
    view[:1] += 1 - view.sum(dtype=np.int64, keepdims=True)
    return view


def fold(array: Array, dims: Dims, keep: Dims) -> Array:
    """Return a fingerprint of ``array`` over the dims that are not in ``keep``."""
    for where in reversed(range(len(dims))):
        if dims[where] not in keep:
            vector = weights(dims[where], array.shape[where])
            if isinstance(array, RowTable) and where == array.ndim - 1:
                array = array.astype(np.int64, copy=False).along_rows(vector)
                continue
            array = np.tensordot(array.astype(np.int64, copy=False), vector, axes=(where, 0))
    return array


def program_fingerprints(
    site: CommandSite,
    count: int,
    burst_bytes: int = 1,
    chosen: Mapping[int, Array] = NOTHING_CHOSEN,
) -> Array:
    """Return a number per program, equal where programs touch the same addresses.

    Of addresses that are data, those are taken as other ones that are made of other numbers, unless
    ``chosen`` has what programs load by the id of the load. With ``burst_bytes``, tiles whose
    elements begin in the same bursts are taken as the same.
    """
    command = site.command
    assert isinstance(command, DmaRead | DmaWrite | Atomic)
    total = np.zeros(count, dtype=np.int64)
    total = reduce(np.add, program_terms(access_of(command).offset, burst_bytes), total)
    if site.gather is not None:
        total = total * SPREAD + _marks(site.gather, count, chosen)
    return total


def pattern_fingerprints(site: CommandSite, count: int) -> Array:
    """Return a number per program, equal where a DMA command has the same shape and mask.

    Where the tile lies does not count, only how its elements lie to each other.
    """
    total = np.zeros(count, dtype=np.int64)
    for part in parts_of(site):
        for term in _pattern_terms(part):
            total = total * SPREAD + term
    return total


def parts_of(site: CommandSite) -> list[Separable | Predicate]:
    """Return what is known of the addresses and the mask of a DMA command."""
    command = site.command
    assert isinstance(command, DmaRead | DmaWrite | Atomic)
    parts: list[Separable | Predicate] = [access_of(command).offset]
    if isinstance(command.mask, Predicate):
        parts.append(command.mask)
    for origin in (site.gather, site.mask):
        if origin is not None:
            parts += leaves(origin)
    return parts


def _marks(part: Part, count: int, chosen: Mapping[int, Array]) -> Array:
    """Return a number per program, equal where programs have the same numbers in a part."""
    views = {name: mixed(numbers).view(np.int64) for name, numbers in chosen.items()}
    for loaded in in_order(part):
        if id(loaded) in views:
            continue
        total = np.zeros(count, dtype=np.int64)
        known: list[Separable | Predicate] = []
        if isinstance(loaded, IndexTile | MaskTile):
            known = [loaded.values]
        elif isinstance(loaded, Loaded):
            known = [loaded.access.offset]
            known += [loaded.mask] if isinstance(loaded.mask, Predicate) else []
        elif isinstance(loaded, Made) and not loaded.inputs:
            # What an atomic found, or something unknown: each program has something else.
            total += mixed(np.arange(count) + (loaded.number << 32)).view(np.int64)
        for value in known:
            total = total * SPREAD + reduce(np.add, program_terms(value), np.zeros_like(total))
        for source in inputs_of(loaded):
            total = total * SPREAD + views[id(source)]
        # Unmixed, what one operation makes could be what others make of its inputs.
        views[id(loaded)] = mixed(total).view(np.int64)
    return views[id(part)]


def program_terms(value: Separable | Predicate, unit: int = 1) -> Iterator[Array]:
    """Yield, of each term that varies over programs, a number per program.

    Numbers of a term count in whole ``unit``, from that of the value's constant.
    """
    first = 0 if unit == 1 or isinstance(value, Predicate) else value.const % unit
    for dims, array in value.terms.items():
        if dims and dims[0] == PROGRAM:
            if unit > 1:
                array, first = (array + first) // unit, 0
            yield fold(array, dims, (PROGRAM,))


def _pattern_terms(value: Separable | Predicate) -> Iterator[Array]:
    """Do as :func:`program_terms`, without where a tensor's first element lies."""
    for dims, array in value.terms.items():
        if not dims or dims[0] != PROGRAM:
            continue
        if isinstance(value, Predicate):
            yield fold(array, dims, (PROGRAM,))
        elif is_axis(dims[-1]):
            yield fold(array - array[..., :1], dims, (PROGRAM,))
