"""What a saved run allocated: a table with a row per allocation, in order (ADR-0157)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic_core import from_json

from kernbench.memory import FIELDS, NEVER, AllocationLog, Phase
from kernbench.op_log import ProgramLines
from kernbench.saved.action import ACTORS, Actions, Actor
from kernbench.saved.action_checks import check_actions, counts_of, take_programs
from kernbench.saved.consistency import lists, numbers, texts
from kernbench.saved.described import DescribedActions
from kernbench.saved.layout import (
    ACTIONS,
    ALLOCATIONS,
    DESCRIBED,
    LINES,
    LINES_OF_COMMANDS,
    LINES_OF_SPANS,
    MEMORY_EVENTS,
    TEMPLATES,
    write_part,
    write_table,
)
from kernbench.saved.opened import RunFile

EVENTS = ("begin", "end")
"""Columns that are numbers of events."""

_OBJECTS = frozenset({"module", "phase"})
"""Columns of objects that have a text."""


def table_of(log: AllocationLog) -> pa.Table:
    """Return a run's allocations as a table."""
    arrays = []
    for field, values in zip(ALLOCATIONS.schema, log.columns(), strict=True):
        if pa.types.is_dictionary(field.type):
            is_object = field.name in _OBJECTS
            texts = None if is_object else pa.array(values, pa.string())
            arrays.append(_encoded(values) if texts is None else texts.dictionary_encode())
        elif pa.types.is_list(field.type):
            # Faster than from tuples.
            offsets = np.zeros(len(values) + 1, np.int32)
            np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
            flat = np.fromiter(chain.from_iterable(values), np.int64, int(offsets[-1]))
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat)))
        else:
            arrays.append(pa.array(np.array(values, field.type.to_pandas_dtype()), field.type))
    return pa.table(arrays, schema=ALLOCATIONS.schema)


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


def write_lines(
    archive: zipfile.ZipFile, commands: Sequence[int], lines: ProgramLines
) -> list[str]:
    """Write the lines, the number of each command's and of each host span's; return their files."""
    files, of_files = zip(*lines.sites, strict=True)
    write_table(
        archive, LINES.part, pa.table([files, of_files, lines.modules], schema=LINES.schema)
    )
    numbers = [command or 0 for command in map(lines.of_commands.get, commands)]
    for layout, values in ((LINES_OF_COMMANDS, numbers), (LINES_OF_SPANS, lines.of_spans)):
        column = pa.array(np.array(values, np.int32))
        write_table(archive, layout.part, pa.table([column], schema=layout.schema))
    return sorted({*files} - {""})


def read_lines(file: RunFile, launches: Sequence[int], num_spans: int) -> ProgramLines | None:
    """Return the lines of commands and of host spans; None if a run was saved without."""
    if not file.has(LINES.part):
        return None
    sites = file.table(LINES, {})
    counts = {"lines": sites.num_rows, "commands": len(launches), "host spans": num_spans}
    of_commands, of_spans = (
        numbers(file.table(layout, counts), "line").tolist()
        for layout in (LINES_OF_COMMANDS, LINES_OF_SPANS)
    )
    return ProgramLines(
        list(zip(texts(sites, "file"), numbers(sites, "line").tolist(), strict=True)),
        texts(sites, "module") if "module" in sites.column_names else [""] * sites.num_rows,
        dict(zip(launches, of_commands, strict=True)),
        of_spans,
    )


_WIDTH = 4


def write_actions(archive: zipfile.ZipFile, actions: Actions) -> None:
    """Write the actions of a run as parts of its file."""
    values = np.concatenate([np.array(actor.values, np.int64) for actor in actions.actors])
    counts = [len(actor.values) // _WIDTH for actor in actions.actors]
    owners = np.repeat([actor.number for actor in actions.actors], counts)
    columns = [owners, *values.reshape(-1, _WIDTH).T]
    arrays = [
        pa.array(column.astype(field.type.to_pandas_dtype()), field.type)
        for column, field in zip(columns, ACTIONS.schema, strict=True)
    ]
    write_table(archive, ACTIONS.part, pa.table(arrays, schema=ACTIONS.schema))
    if actions.memory_events is not None:
        arrays = [pa.array(item, pa.int64()) for item in actions.memory_events.T]
        write_table(
            archive,
            MEMORY_EVENTS.part,
            pa.table(arrays, schema=MEMORY_EVENTS.schema),
            counts=MEMORY_EVENTS.schema.names,
        )
    described = {**actions.described, "actors": [actor.rank for actor in actions.actors]}
    write_part(archive, DESCRIBED, json.dumps(described, default=_plain).encode())


def read_actions(file: RunFile, counts: Mapping[str, int]) -> Actions | None:
    """Read the actions of a run; None if it was saved without.

    Raises:
        UsageError: They are not those of a run; names the part.
    """
    if not file.has(DESCRIBED):
        return None
    described = file.described(DESCRIBED, DescribedActions)
    ranks = described.pop("actors")
    launched = [from_json(text) for text in {*texts(file.table(TEMPLATES, counts), "given")}]
    take_programs(file, described, [tuple(item.get("grid") or ()) for item in launched])
    counts = {**counts, **counts_of(described), ACTORS: len(ranks)}
    table = file.table(ACTIONS, counts)
    owners = numbers(table, "actor")
    values = np.stack(
        [numbers(table, name).astype(np.int64) for name in ("action", *"abc")], axis=1
    )
    starts = np.searchsorted(owners, np.arange(len(ranks) + 1))
    events = None
    if file.has(MEMORY_EVENTS.part):
        events = np.stack(
            [
                numbers(file.table(MEMORY_EVENTS, counts), name)
                for name in ("event", "actor", "place")
            ],
            axis=1,
        )
    check_actions(file, described, ranks, owners, values, events, counts)
    actors = [
        Actor(number, rank, values[starts[number] : starts[number + 1]].ravel().tolist())
        for number, rank in enumerate(ranks)
    ]
    return Actions(described, actors, events)


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(value)
