"""What a saved run allocated: a table with a row per allocation, in order (ADR-0157)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from kernbench.memory import FIELDS, NEVER, AllocationLog, Phase
from kernbench.saved.consistency import lists, numbers, texts
from kernbench.saved.layout import ALLOCATIONS

EVENTS = ("begin", "end")
"""Columns that are numbers of events."""

_OBJECTS = frozenset({"module", "phase"})
"""Columns of objects that have a text."""


def table_of(log: AllocationLog) -> pa.Table:
    """Return a run's allocations as a table."""
    arrays = []
    for field, values in zip(ALLOCATIONS.schema, log.columns(), strict=True):
        if pa.types.is_dictionary(field.type):
            arrays.append(_encoded(values) if field.name in _OBJECTS else _texts(values))
        elif pa.types.is_list(field.type):
            # Faster than from tuples.
            offsets = np.zeros(len(values) + 1, np.int32)
            np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
            flat = np.fromiter(chain.from_iterable(values), np.int64, int(offsets[-1]))
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat)))
        else:
            arrays.append(pa.array(np.array(values, field.type.to_pandas_dtype()), field.type))
    return pa.table(arrays, schema=ALLOCATIONS.schema)


def _texts(values: Sequence[object]) -> pa.Array:
    return pa.array(values, pa.string()).dictionary_encode()


def _encoded(values: Sequence[object]) -> pa.Array:
    """Return texts as codes; objects that repeat are looked at once, equal texts have one code."""
    ids = list(map(id, values))
    by_id = dict(zip(ids, values, strict=True))
    texts: dict[str, int] = {}
    codes = {key: texts.setdefault(str(value), len(texts)) for key, value in by_id.items()}
    result = np.fromiter(map(codes.__getitem__, ids), np.int32, len(values))
    return pa.DictionaryArray.from_arrays(pa.array(result), pa.array(list(texts), pa.string()))


def allocations_in(table: pa.Table) -> AllocationLog:
    """Return the allocations that a table has."""
    return AllocationLog(lambda: columns_of(table))


def columns_of(table: pa.Table) -> list[Sequence[Any]]:
    """Return the columns that a table has, as those of an :class:`AllocationLog`."""
    columns: dict[str, Any] = {
        name: numbers(table, name) if pa.types.is_integer(kind) else texts(table, name)
        for name, kind in zip(ALLOCATIONS.schema.names, ALLOCATIONS.schema.types, strict=True)
        if not pa.types.is_list(kind)
    }
    columns["shape"] = lists(table, "shape")
    phases = {phase.value: phase for phase in Phase}
    columns["phase"] = [phases[name] for name in columns["phase"]]
    return [columns[name] for name in FIELDS]


def at_other_times(table: pa.Table, times_ps: Mapping[int, int]) -> list[Sequence[Any]]:
    """Return the columns of a table with other times, by the numbers of events."""
    columns: dict[str, Any] = dict(zip(FIELDS, columns_of(table), strict=True))
    for event in ("begin", "end"):
        times = [times_ps.get(number, NEVER) for number in columns[event]]
        columns[f"{event}_ps"] = np.array(times, np.int64)
    return list(columns.values())
