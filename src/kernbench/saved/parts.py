"""Parts of the ZIP file that a saved run is."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

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
