"""A saved run's file while it is read: each part is held to its size, its type and its values."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from kernbench.errors import UsageError
from kernbench.inputs import open_regular
from kernbench.saved.layout import MOST_TEXT, ColumnLayout, TableLayout

_ROOM = 192 << 20
"""Bytes of memory for what is read of any run."""
_ROOM_PER_BYTE = 200
"""And for each byte of its file: three times what runs of thousands of commands take."""
_MARK_BYTES = 48
"""What each bracket and comma of a JSON text becomes in memory, about."""
_MOST_ITEMS = 1 << 20
"""The longest list in the description of a table, which names columns and their places."""


def damaged(name: str, part: str, what: str) -> UsageError:
    """Return the error for a saved run of which a part is not what a run has there."""
    return UsageError(f"{name} is damaged: {part}: {what}")


class RunFile:
    """The parts of a saved run, of an open file."""

    def __init__(self, name: str, archive: zipfile.ZipFile, size: int) -> None:
        self.name = name
        self._archive = archive
        self._size = size
        self._room = _ROOM + _ROOM_PER_BYTE * size
        self.parts = {zip_info.filename: zip_info for zip_info in archive.infolist()}

    def damaged(self, part: str, what: str) -> UsageError:
        """Return the error for a part that is not what a run has there."""
        return damaged(self.name, part, what)

    def take(self, part: str, size: int) -> None:
        """Take memory for a part.

        Raises:
            UsageError: With what was read before, it is more than such a file would need.
        """
        self._room -= size
        if self._room < 0:
            raise self.damaged(
                part,
                f"it would take {size / 1e6:,.0f} MB of memory, more than what a file of "
                f"{self._size:,} bytes holds",
            )

    def has(self, part: str) -> bool:
        """Return whether there is such a part."""
        return part in self.parts

    def check_whole(self) -> None:
        """Read all parts, and hold them to their checksums.

        Raises:
            UsageError: One has other bytes, is there twice, or is larger than the file allows.
        """
        infos = self._archive.infolist()
        if len(infos) > len(self.parts):
            names = [info.filename for info in infos]
            twice = next(name for name in names if names.count(name) > 1)
            raise self.damaged(twice, "the part is there twice")
        room = self._room
        for info in infos:
            self._check_form(info)
            self.take(info.filename, info.file_size)
        self._room = room
        with self._reading("its parts"):
            other = self._archive.testzip()
            if other is not None:
                raise self.damaged(other, "it has other bytes than were written")

    def _check_form(self, info: zipfile.ZipInfo) -> None:
        known = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if info.flag_bits & 1 or info.compress_type not in known:
            raise self.damaged(info.filename, "it is compressed or encrypted in another way")

    @contextmanager
    def _reading(self, part: str) -> Iterator[None]:
        try:
            yield
        except UsageError:
            raise
        except (
            *(zipfile.BadZipFile, zlib.error, pa.ArrowException),
            *(OSError, EOFError, NotImplementedError, RuntimeError, MemoryError),
            *(ValueError, TypeError, LookupError),
        ) as error:
            said = " ".join(str(error).split())[:200]
            raise self.damaged(part, f"it cannot be read ({said})") from None

    def read(self, part: str) -> bytes:
        """Return the bytes of a part.

        Raises:
            UsageError: There is no such part, or it has other bytes than were written.
        """
        info = self.parts.get(part)
        if info is None:
            raise self.damaged(part, "the part is missing")
        self._check_form(info)
        self.take(part, info.file_size)
        with self._reading(part), self._archive.open(info) as file:
            return file.read(info.file_size + 1)

    def described(self, part: str, *models: type[BaseModel]) -> dict[str, Any]:
        """Return a part in JSON, which describes what the models say.

        Raises:
            UsageError: It describes something else; names the key.
        """
        data = self.read(part)
        self.take(part, sum(map(data.count, (b"[", b"{", b",", b":"))) * _MARK_BYTES)
        for model in models:
            self.hold(part, model, data)
        json: dict[str, Any] = from_json(data)
        return json

    def hold(self, part: str, model: type[BaseModel], data: str | bytes) -> None:
        """Hold a JSON text of a part to a model.

        Raises:
            UsageError: It describes something else; names the key.
        """
        try:
            model.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "all of it"
            message = first["msg"].removeprefix("Value error, ")
            raise self.damaged(part, f"{where}: {message[:1].lower()}{message[1:]}") from None

    def table(self, layout: TableLayout, counts: Mapping[str, int]) -> pa.Table:
        """Return a part that is a table; ``counts`` says how many there are of what it names.

        Texts are codes of dictionaries, in lists and maps too.

        Raises:
            UsageError: It is another table, or has values that it may not have; names the column.
        """
        data = pa.BufferReader(self.read(layout.part))
        with self._reading(layout.part):
            file = pq.ParquetFile(
                data,
                read_dictionary=[item.path for item in pq.ParquetFile(data, **_LIMITS).schema],
                **_LIMITS,
            )
            self._take_table(layout, file.metadata)
            table = file.read(use_threads=False).unify_dictionaries().combine_chunks()
        rows = counts.get(layout.rows_of, table.num_rows)
        if table.num_rows != rows:
            raise self.damaged(
                layout.part, f"{table.num_rows:,} rows, of {rows:,} {layout.rows_of}"
            )
        value = dict(zip(table.column_names, table.columns, strict=True))
        for column in layout.columns:
            values = value.pop(column.name, None)
            if values is not None:
                with self._reading(layout.part):
                    self._check_column(layout.part, column, values, counts)
            elif not column.is_optional:
                raise self.damaged(layout.part, f"the column {column.name} is missing")
        if value:
            raise self.damaged(layout.part, f"it has a column {next(iter(value))}")
        return table

    def _take_table(self, layout: TableLayout, described: pq.FileMetaData) -> None:
        """Take the memory of a table, which is that of its values and of the texts among them."""
        size = 0
        for group in range(described.num_row_groups):
            columns = described.row_group(group)
            for number in range(columns.num_columns):
                chunk = columns.column(number)
                values, stored = chunk.num_values, chunk.total_uncompressed_size
                if values < 0 or stored < 0:
                    raise self.damaged(layout.part, "it describes fewer than no values")
                size += values * (8 + layout.value_bytes) + stored
        self.take(layout.part, size)

    def _check_column(
        self, part: str, column: ColumnLayout, values: pa.ChunkedArray, counts: Mapping[str, int]
    ) -> None:
        if _plain_type(values.type) != _plain_type(column.type):
            raise self.damaged(
                part, f"{column.name} is of {_plain_type(values.type)}, not {column.type}"
            )
        for array in values.chunks:
            array.validate()
            for inner, among in _inner(array, column.among):
                is_text = pa.types.is_dictionary(inner.type)
                if (
                    array.null_count
                    or inner.null_count
                    or (is_text and inner.dictionary.null_count)
                ):
                    raise self.damaged(part, f"{column.name} lacks values")
                if is_text:
                    longest = int(np.diff(_ends(inner.dictionary)).max(initial=0))
                    if longest > MOST_TEXT:
                        said = f"{column.name} has a text of {longest:,} bytes"
                        raise self.damaged(part, said)
                    # Columns share a dictionary, of which each uses some texts. And Arrow takes
                    # bytes for texts, which Python does not.
                    used = inner.dictionary.take(inner.indices.unique())
                    others = {*used.to_pylist()} - among if among else ()
                    if others:
                        raise self.damaged(part, f"{column.name} cannot be {min(others)[:40]!r}")
                elif len(inner):
                    self._check_range(part, column, inner, counts)

    def _check_range(
        self, part: str, column: ColumnLayout, values: pa.Array, counts: Mapping[str, int]
    ) -> None:
        numbers = values.to_numpy()
        most = counts[column.of] - 1 if column.of else column.most
        for value in (int(numbers.min()), int(numbers.max())):
            if not column.least <= value <= most:
                what = f" of {counts[column.of]:,} {column.of}" if column.of else ""
                may_be = "" if column.of else f", which is not from {column.least:,} to {most:,}"
                raise self.damaged(part, f"{column.name} {value}{what}{may_be}")


_LIMITS: Any = {"thrift_container_size_limit": _MOST_ITEMS, "thrift_string_size_limit": _MOST_ITEMS}


def _ends(texts: pa.Array) -> Any:
    """Return where texts begin among the bytes of all, and where the last one ends."""
    _, offsets, _ = texts.buffers()
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    ends = np.frombuffer(offsets, width) if offsets is not None else np.zeros(1, width)
    return ends[texts.offset : texts.offset + len(texts) + 1]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without how its texts are stored, and without names inside of it."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    return kind


def _inner(array: pa.Array, among: frozenset[str]) -> Iterator[tuple[pa.Array, frozenset[str]]]:
    """Yield an array, or those inside of it, each with the texts that it may have."""
    if pa.types.is_map(array.type):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        yield array.keys[first:last], among
        yield array.items[first:last], frozenset()
    elif pa.types.is_list(array.type):
        yield array.flatten(), among
    else:
        yield array, among


@contextmanager
def opened(name: str) -> Iterator[RunFile]:
    """Open the file of a run.

    Raises:
        UsageError: It is no regular file, cannot be read, or is no saved run.
    """
    if not name:
        raise UsageError("name a run that --save has kept; what is given is empty")
    try:
        file = open_regular(name)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{name}: cannot be read as a saved run: {reason}") from None
    with file:
        size = os.fstat(file.fileno()).st_size
        try:
            archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, EOFError) as error:
            what = "is empty" if not size else "is no run saved with --save"
            raise UsageError(f"{name}: {what}, or it is damaged ({error})") from None
        with archive:
            yield RunFile(name, archive, size)
