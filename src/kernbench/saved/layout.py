"""The parts of a saved run, and their columns: a ZIP file of Parquet tables and JSON (ADR-0152).

A column says what values it may have, and what these are numbers of: a reader holds a file to that
before it uses any of it, and a writer takes the types (ADR-0234).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kernbench.commands import Engine, Space
from kernbench.memory import Phase
from kernbench.op_log import (
    HOST_KINDS,
    KINDS,
    ROW_COLUMNS,
    TEXT_COLUMNS,
    WIDE_COLUMNS,
    Energy,
    Limit,
)

FORMAT = 2
"""Raised with every change that makes older files mean something else."""
ABOUT = "run.json"
SOURCES = "sources/"
"""The texts of source files, numbered as ``run.json`` lists them."""

MOST = 10**18
"""The most that a number may be that is no address: a fifth of what 64 bits hold, in picoseconds
eleven days."""
MOST_TEXT = 1 << 20
"""Bytes of a text, but for those of kernels and of files."""
_ADDRESS = (1 << 63) - 1

_TEXT = pa.dictionary(pa.int32(), pa.string())
"""The type of texts that repeat; those in lists, and of few rows, are stored one by one."""
_INT, _SHORT = pa.int64(), pa.int32()


@dataclass(frozen=True)
class ColumnLayout:
    """A column of numbers or texts, or of lists of them."""

    name: str
    type: pa.DataType
    least: int = 0
    most: int = MOST
    of: str = ""
    """What its numbers are of: they are below how many of these the run has."""
    among: frozenset[str] = frozenset()
    """The texts that it may have; of a map, its keys. Empty: any."""
    is_optional: bool = False
    """Whether a run may lack it that an older kernbench has saved."""


@dataclass(frozen=True)
class TableLayout:
    """A table, which is a part of the file."""

    part: str
    columns: tuple[ColumnLayout, ...]
    value_bytes: int = 64
    """What a value takes about in memory, beside its place in a column: most become objects."""
    rows_of: str = ""
    """What it has a row for each of."""

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([(column.name, column.type) for column in self.columns])


def _among(values: Iterable[str]) -> frozenset[str]:
    return frozenset(map(str, values))


def _map(name: str, keys: Iterable[str], *, is_optional: bool = False) -> ColumnLayout:
    kind = pa.map_(pa.string(), _INT)
    return ColumnLayout(name, kind, among=_among(keys), is_optional=is_optional)


def _numbered(name: str, of: str, *, is_list: bool = False) -> ColumnLayout:
    return ColumnLayout(name, pa.list_(_SHORT) if is_list else _SHORT, of=of)


def _table(part: str, *columns: ColumnLayout, **more: Any) -> TableLayout:
    return TableLayout(part, columns, **more)


_RANK = _numbered("rank", "ranks")

TEMPLATES = _table(
    "templates.parquet",
    ColumnLayout("name", pa.string()),
    ColumnLayout("kind", pa.string(), among=_among(KINDS)),
    ColumnLayout("algorithm", pa.string()),
    *[
        ColumnLayout(name, _INT)
        for name in ("duration_ps", "flops", "hbm_bytes", "message_bytes", "bound_ps", "comm_ps")
    ],
    ColumnLayout("family", pa.string()),
    _map("engine_busy_ps", Engine),
    _map("limits_ps", Limit),
    ColumnLayout("hbm_bytes_by_rank", pa.list_(_INT)),
    ColumnLayout("given", pa.string()),
    _map("energy_pj", Energy, is_optional=True),
    ColumnLayout("num_rows", _INT),
    value_bytes=128,
)
"""One row per template, ``given`` as JSON; its rows are the next ``num_rows`` of all rows."""

_OR_NONE = frozenset(
    ("rank", "cube", "pe_first", "program_first", "src_param", "dst_param", "step", "chunk", "peer")
)
"""Numbers of a row that may be -1, for none."""
_AMONG = {"engine": _among(Engine), "src_space": _among(Space), "dst_space": _among(Space)}


def _of_rows(name: str) -> ColumnLayout:
    if name in TEXT_COLUMNS:
        return ColumnLayout(name, _TEXT, among=_AMONG.get(name, frozenset()))
    kind = _INT if name in WIDE_COLUMNS else _SHORT
    if name == "link":
        return ColumnLayout(name, kind, least=-1, of="links")
    return ColumnLayout(name, kind, least=-1 if name in _OR_NONE else 0)


ROWS = _table("rows.parquet", *map(_of_rows, ROW_COLUMNS), value_bytes=16, rows_of="rows")

COMMANDS = _table(
    "commands.parquet",
    ColumnLayout("launch", _INT, least=1),
    _numbered("template", "templates"),
    ColumnLayout("stream", _TEXT),
    _numbered("rank", "ranks", is_list=True),
    _numbered("sip", "SIPs", is_list=True),
    ColumnLayout("start_ps", pa.list_(_INT)),
    ColumnLayout("end_ps", pa.list_(_INT)),
    ColumnLayout("after", pa.list_(_INT)),
    ColumnLayout("addresses", pa.list_(_INT), most=_ADDRESS),
    ColumnLayout("site_file", pa.list_(pa.string())),
    ColumnLayout("site_line", pa.list_(_SHORT)),
)
"""One row per command, in the order of the log; lists are by rank, addresses by parameter.

Sites are those of a collective's callers."""

HOSTS = _table(
    "hosts.parquet",
    _RANK,
    ColumnLayout("kind", _TEXT, among=_among(HOST_KINDS)),
    ColumnLayout("label", _TEXT),
    ColumnLayout("start_ps", _INT),
    ColumnLayout("end_ps", _INT),
)
WAITS = _table("waits.parquet", _RANK, ColumnLayout("end_ps", _INT), ColumnLayout("after", _INT))
WOKEN = _table("woken.parquet", _RANK, ColumnLayout("end_ps", _INT), _numbered("by", "ranks"))
RANGES = _table(
    "ranges.parquet",
    _RANK,
    ColumnLayout("name", _TEXT),
    ColumnLayout("start_ps", _INT),
    ColumnLayout("end_ps", _INT),
)

ALLOCATIONS = _table(
    "memory.parquet",
    _RANK,
    _numbered("sip_id", "SIPs"),
    ColumnLayout("size_bytes", _INT),
    ColumnLayout("asked_bytes", _INT),
    ColumnLayout("begin", _INT),
    ColumnLayout("begin_ps", _INT),
    ColumnLayout("name", _TEXT),
    ColumnLayout("shape", pa.list_(_INT)),
    ColumnLayout("dtype", _TEXT),
    ColumnLayout("module", _TEXT),
    ColumnLayout("file", _TEXT),
    ColumnLayout("line", _SHORT),
    ColumnLayout("end", _INT, least=-1),
    ColumnLayout("end_ps", _INT, least=-1),
    ColumnLayout("phase", _TEXT, among=_among(Phase)),
)
"""The fields of an :class:`Allocation`, in order."""

LINES = _table(
    "lines.parquet",
    ColumnLayout("file", pa.string()),
    ColumnLayout("line", _SHORT),
    ColumnLayout("module", _TEXT, is_optional=True),
)
LINES_OF_COMMANDS = _table("lines_commands.parquet", _numbered("line", "lines"), rows_of="commands")
LINES_OF_SPANS = _table("lines_hosts.parquet", _numbered("line", "lines"), rows_of="host spans")

DESCRIBED = "actions.json"
ACTIONS = _table(
    "actions.parquet",
    _numbered("actor", "actors"),
    ColumnLayout("action", pa.int8()),
    *[ColumnLayout(name, _INT, least=-_ADDRESS, most=_ADDRESS) for name in "abc"],
)
"""One row per action, actor by actor and in order; what its numbers mean depends on the action."""
MEMORY_EVENTS = _table(
    "actions_memory.parquet",
    ColumnLayout("event", _INT),
    ColumnLayout("actor", _INT, of="actors"),
    ColumnLayout("place", _INT),
    value_bytes=16,
)

TABLES = (TEMPLATES, ROWS, COMMANDS, HOSTS, WAITS, WOKEN, RANGES)
"""What every saved run has, with what :data:`ABOUT` says."""


_EPOCH = (1980, 1, 1, 0, 0, 0)
"""When each part was written, for ZIP files: equal runs have equal bytes."""


def write_part(archive: zipfile.ZipFile, name: str, data: bytes | memoryview) -> None:
    """Write a part; Parquet compresses by itself."""
    kind = zipfile.ZIP_STORED if name.endswith(".parquet") else zipfile.ZIP_DEFLATED
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), bytes(data), kind)


def write_table(
    archive: zipfile.ZipFile,
    name: str,
    table: pa.Table,
    *,
    repeats: bool = False,
    counts: Sequence[str] = (),
) -> None:
    """Write a table as a part in Parquet.

    Of one that ``repeats``, numbers do, too. ``counts`` are columns of numbers that differ little
    from those before them.
    """
    sink = pa.BufferOutputStream()
    # Nobody reads single columns by value, and numbers that differ make no dictionary.
    texts = [item.name for item in table.schema if pa.types.is_dictionary(item.type)]
    # There are no nulls; without a note of that by row a fifth of the time is saved.
    fields = [item.with_nullable(False) for item in table.schema]
    pq.write_table(
        pa.Table.from_arrays(table.columns, schema=pa.schema(fields)),
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=repeats or texts,
        column_encoding=dict.fromkeys(counts, "DELTA_BINARY_PACKED") or None,
        write_statistics=False,
    )
    write_part(archive, name, memoryview(sink.getvalue()))
