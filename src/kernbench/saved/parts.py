"""Parts of the ZIP file that a saved run is."""

from __future__ import annotations

import zipfile

import pyarrow as pa
import pyarrow.parquet as pq

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""When each part was written, for ZIP files: equal runs have equal bytes."""


def write_part(archive: zipfile.ZipFile, name: str, data: bytes | memoryview) -> None:
    """Write a part; Parquet compresses by itself."""
    kind = zipfile.ZIP_STORED if name.endswith(".parquet") else zipfile.ZIP_DEFLATED
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), bytes(data), kind)


def write_table(
    archive: zipfile.ZipFile, name: str, table: pa.Table, *, repeats: bool = False
) -> None:
    """Write a table as a part in Parquet; of one that ``repeats``, numbers do, too."""
    sink = pa.BufferOutputStream()
    # Nobody reads single columns by value, and numbers that differ make no dictionary.
    texts = [each.name for each in table.schema if pa.types.is_dictionary(each.type)]
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=repeats or texts,
        write_statistics=False,
    )
    write_part(archive, name, memoryview(sink.getvalue()))


def read_table(archive: zipfile.ZipFile, name: str) -> pa.Table:
    """Read a part in Parquet."""
    return pq.read_table(pa.BufferReader(archive.read(name)))
