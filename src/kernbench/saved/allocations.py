"""What a saved run allocated: a table with a row per allocation, in order (ADR-0157)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import pyarrow as pa

from kernbench.memory import Allocation, AllocationLog, Phase

MEMBER = "memory.parquet"

_TEXT = pa.dictionary(pa.int32(), pa.string())
_INT = pa.int64()
_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("sip_id", pa.int32()),
        ("size_bytes", _INT),
        ("asked_bytes", _INT),
        ("begin", _INT),
        ("begin_ps", _INT),
        ("name", _TEXT),
        ("shape", pa.list_(_INT)),
        ("dtype", _TEXT),
        ("module", _TEXT),
        ("file", _TEXT),
        ("line", pa.int32()),
        ("end", _INT),
        ("end_ps", _INT),
        ("phase", _TEXT),
    ]
)
"""The fields of an :class:`Allocation`."""


def table_of(log: AllocationLog) -> pa.Table:
    """Return a run's allocations as a table."""
    rows = list(map(attrgetter(*_SCHEMA.names), log.entries))
    arrays = []
    for field, values in zip(
        _SCHEMA, zip(*rows, strict=True) if rows else [()] * len(_SCHEMA), strict=True
    ):
        if pa.types.is_dictionary(field.type):
            arrays.append(_encoded(values))
        elif pa.types.is_list(field.type):
            # Faster than from tuples.
            offsets = [0]
            for each in values:
                offsets.append(offsets[-1] + len(each))
            flat = pa.array(chain.from_iterable(values), _INT)
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.table(arrays, schema=_SCHEMA)


def _encoded(values: Sequence[object]) -> pa.Array:
    """Return texts as codes; objects that repeat are looked at once."""
    codes: dict[int, int] = {}
    texts: list[str] = []
    found = []
    for each in values:
        code = codes.get(id(each))
        if code is None:
            code = codes[id(each)] = len(texts)
            texts.append(str(each))
        found.append(code)
    return pa.DictionaryArray.from_arrays(pa.array(found, pa.int32()), pa.array(texts, pa.string()))


def allocations_in(table: pa.Table) -> AllocationLog:
    """Return the allocations that a table has."""
    log = AllocationLog()
    columns = {name: table[name].to_pylist() for name in _SCHEMA.names}
    columns["shape"] = [tuple(each) for each in columns["shape"]]
    columns["phase"] = [Phase(each) for each in columns["phase"]]
    for values in zip(*columns.values(), strict=True):
        log.entries.append(Allocation(**dict(zip(columns, values, strict=True))))
    return log
