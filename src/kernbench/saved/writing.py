"""Writing a run: tables of its log, its machine, its report, the source files that it names."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from kernbench.hardware import Machine, machine_data
from kernbench.inputs import source_texts
from kernbench.op_log import (
    ROW_COLUMNS,
    TEXT_COLUMNS,
    Column,
    CommandColumns,
    OpLog,
    RowReader,
    Template,
    command_columns,
    host_columns,
    uncollected,
)
from kernbench.saved.action import Actions
from kernbench.saved.allocations import EVENTS, table_of, write_actions, write_lines
from kernbench.saved.layout import (
    ABOUT,
    ALLOCATIONS,
    COMMANDS,
    FORMAT,
    HOSTS,
    RANGES,
    ROWS,
    SOURCES,
    TEMPLATES,
    WAITS,
    WOKEN,
    TableLayout,
    write_part,
    write_table,
)


def save_run(
    out: BinaryIO,
    log: OpLog,
    machine: Machine,
    report: Mapping[str, Any],
    *,
    program: str = "",
    actions: Actions | None = None,
) -> None:
    """Write a run that has ended to an open file.

    The same program, machine and seed give the same bytes, but for the real time in ``report``.

    Args:
        out: Where to; may be sought.
        log: What the run did.
        machine: What it ran on.
        report: What ``torch.report()`` returned, with what else is to be said about the run.
        program: The program's file, as it was named.
        actions: What its ranks did, so that ``kernbench retime`` can do it again.
    """
    with uncollected(), zipfile.ZipFile(out, "w") as archive:
        commands = command_columns(log)
        templates, files = _write_templates(archive, commands)
        _write_commands(archive, log, commands, templates)
        _write_hosts(archive, log)
        if actions is not None:
            write_actions(archive, actions)
        if log.allocations is not None:
            write_table(archive, ALLOCATIONS.part, table_of(log.allocations), counts=EVENTS)
        if log.program_lines is not None:
            files += write_lines(archive, commands.numbers, log.program_lines)
        sources = _write_sources(archive, files)
        about = {
            "format": FORMAT,
            "kernbench": metadata.version("kernbench"),
            "program": program,
            "machine": machine_data(machine),
            "report": report,
            "graphs": log.graphs,
            "running": log.running,
            "sources": sources,
        }
        write_part(archive, ABOUT, json.dumps(about, indent=1).encode())


def _write_templates(
    archive: zipfile.ZipFile, commands: CommandColumns
) -> tuple[dict[Template, int], list[str]]:
    """Write all templates with their rows; return their numbers, and the files that rows name."""
    ranks: dict[Template, int] = {}
    for template, num_ranks in zip(commands.templates, commands.num_ranks.tolist(), strict=True):
        ranks.setdefault(template, num_ranks)
    reader = RowReader()
    columns: dict[str, list[Any]] = {name: [] for name in TEMPLATES.schema.names}
    parts: dict[str, list[Any]] = {name: [] for name in ROW_COLUMNS}
    for template, num_ranks in ranks.items():
        rows = reader.read(template, num_ranks)
        for name in ROW_COLUMNS:
            parts[name].append(rows[name])
        for name in TEMPLATES.schema.names:
            columns[name].append(rows.num_rows if name == "num_rows" else _value(template, name))
    write_table(archive, TEMPLATES.part, pa.table(columns, TEMPLATES.schema))
    texts = reader.vocabulary.texts
    arrays = []
    for field in ROWS.schema:
        values = np.concatenate(parts[field.name]) if ranks else np.zeros(0, dtype=np.int32)
        if field.name in TEXT_COLUMNS:
            arrays.append(pa.DictionaryArray.from_arrays(pa.array(values, pa.int32()), texts))
        else:
            arrays.append(pa.array(values, field.type))
    write_table(archive, ROWS.part, pa.table(arrays, schema=ROWS.schema), repeats=True)
    # A column with one value for all rows repeats it.
    numbers = [column[:1] if column.strides == (0,) else column for column in parts["file"]]
    files = {code for column in numbers for code in np.unique(column).tolist()}
    return {rank: number for number, rank in enumerate(ranks)}, [
        texts[code] for code in sorted(files)
    ]


def _value(template: Template, name: str) -> Any:
    if name == "given":
        return json.dumps(template.launched_with, separators=(",", ":"))
    value = getattr(template, name)
    # Engines and limits are enumerations of texts.
    return [(key.value, ps) for key, ps in value.items()] if isinstance(value, Mapping) else value


def _write_commands(
    archive: zipfile.ZipFile, log: OpLog, commands: CommandColumns, templates: dict[Template, int]
) -> None:
    numbers, addresses = commands.numbers, commands.addresses
    offsets = _offsets(commands.num_ranks)
    addresses_at = _offsets(np.fromiter(map(len, addresses), np.int64, len(addresses)))
    by_rank = (commands.ranks, commands.sips, commands.starts_ps, commands.ends_ps)
    columns = [
        numbers,
        [templates[template] for template in commands.templates],
        pa.array(commands.streams, pa.string()).dictionary_encode(),
        *(_lists(array, offsets) for array in by_rank),
        _lists(_numbers_of(commands.after, log), offsets),
        _lists(np.fromiter(chain.from_iterable(addresses), np.int64), addresses_at),
        *_sites(log, numbers),
    ]
    _write(archive, COMMANDS, columns)


def _numbers_of(after: Column, log: OpLog) -> Column:
    """Return the launch ids behind what was waited for, as ``OpLog.number_of`` does."""
    numbers = after.copy()
    unnamed = numbers < 0
    numbers[unnamed] = [log.number_of(item) for item in numbers[unnamed].tolist()]
    return numbers


def _sites(log: OpLog, launches: Sequence[int]) -> tuple[pa.Array, pa.Array]:
    """Return the files and the lines of callers, by command and rank."""
    # Of all commands few are collectives.
    pairs = [
        (place, log.sites[launch]) for place, launch in enumerate(launches) if launch in log.sites
    ]
    sizes = np.zeros(len(launches), np.int64)
    sizes[[place for place, _ in pairs]] = [len(sites) for _, sites in pairs]
    offsets = pa.array(_offsets(sizes))
    flat = list(chain.from_iterable(sites for _, sites in pairs))
    texts = pa.array([file for file, _ in flat], pa.string())
    lines = pa.array([line for _, line in flat], pa.int32())
    return (pa.ListArray.from_arrays(offsets, texts), pa.ListArray.from_arrays(offsets, lines))


def _offsets(sizes: Column) -> Column:
    """Return where lists of some sizes begin among the values of all, and where the last ends."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _lists(values: Column, offsets: Column) -> pa.Array:
    """Return lists of numbers as an array: faster than from tuples."""
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _write_hosts(archive: zipfile.ZipFile, log: OpLog) -> None:
    spans = host_columns(log)
    columns = [spans.ranks, spans.kinds, spans.labels, spans.starts_ps, spans.ends_ps]
    _write(archive, HOSTS, columns)
    rank, end_ps, after = (log.plain_waits[first::3] for first in range(3))
    waits = [rank, end_ps, [log.number_of(number) for number in after]]
    _write(archive, WAITS, waits)
    woken = [[triple[part] for triple in log.woken] for part in range(3)]
    _write(archive, WOKEN, woken)
    ranges = [[getattr(item, name) for item in log.host_ranges] for name in RANGES.schema.names]
    _write(archive, RANGES, ranges)


def _write(archive: zipfile.ZipFile, layout: TableLayout, columns: Sequence[Any]) -> None:
    arrays = []
    for values, field in zip(columns, layout.schema, strict=True):
        if isinstance(values, pa.Array):
            arrays.append(values.cast(field.type))
        elif pa.types.is_dictionary(field.type):
            arrays.append(pa.array(values, pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(values, field.type))
    write_table(archive, layout.part, pa.table(arrays, schema=layout.schema))


def _write_sources(archive: zipfile.ZipFile, files: Sequence[str]) -> list[str]:
    """Write the source files that can still be read, and return their paths."""
    texts = source_texts(files)
    for number, text in enumerate(texts.values()):
        write_part(archive, f"{SOURCES}{number}", text.encode())
    return list(texts)
