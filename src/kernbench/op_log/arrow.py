"""The op log as Arrow record batches: templates times instances, in absolute time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernbench.op_log.log import Column, Instance, OpLog, absolute_ps
from kernbench.op_log.rows import RowReader, Rows, Vocabulary
from kernbench.op_log.schema import SCHEMA, run_schema

BATCH_ROWS = 1 << 17

_SAME = (
    *("cube", "pe_first", "pe_count", "engine", "kind", "program_first", "program_count"),
    *("count", "busy_ps", "bytes", "flops", "src_space", "dst_space", "step", "chunk", "link"),
    *("file", "line"),
)
"""Columns that every instance of a template has the same values in."""


def to_table(log: OpLog) -> pa.Table:
    """Return the whole log as one table."""
    return pa.Table.from_batches(list(batches(log)), SCHEMA).unify_dictionaries()


def dump_parquet(log: OpLog, out: BinaryIO, *, machine: str, ranks: int) -> int:
    """Write the log to an open file batch by batch and return the number of rows."""
    num_rows = 0
    schema = run_schema(machine, ranks)
    with pq.ParquetWriter(out, schema, compression="zstd", compression_level=1) as writer:
        for batch in batches(log):
            writer.write_batch(batch.cast(schema))
            num_rows += batch.num_rows
    return num_rows


def batches(log: OpLog, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the log's rows in order: by instance, then by row of its template.

    A batch holds whole instances, about ``batch_rows`` rows of them; an instance that alone is
    larger is cut.
    """
    reader = RowReader()
    collectives = np.array([0, *log.collectives], dtype=np.int64)
    window: list[Instance] = []
    num_rows = 0
    for instance in log.instances:
        rows = reader.read(instance.template, len(instance.ranks))
        if window and num_rows + rows.num_rows > batch_rows:
            yield _batch(window, reader, collectives)
            window, num_rows = [], 0
        if rows.num_rows > batch_rows:
            for first in range(0, rows.num_rows, batch_rows):
                end = first + batch_rows
                columns = {name: column[first:end] for name, column in rows.columns.items()}
                part = Rows(len(columns["start_ps"]), columns)
                yield _record_batch(
                    _expand([instance], part, reader.vocabulary, collectives), reader
                )
            continue
        window.append(instance)
        num_rows += rows.num_rows
    if window:
        yield _batch(window, reader, collectives)


def _batch(window: Sequence[Instance], reader: RowReader, collectives: Column) -> pa.RecordBatch:
    """Expand template by template, then put the rows back into the order of the instances."""
    positions: dict[int, list[int]] = {}
    for position, instance in enumerate(window):
        positions.setdefault(id(instance.template), []).append(position)
    parts: list[dict[str, Column]] = []
    order: list[Column] = []
    for where in positions.values():
        same = [window[position] for position in where]
        rows = reader.read(same[0].template, len(same[0].ranks))
        parts.append(_expand(same, rows, reader.vocabulary, collectives))
        order.append(np.repeat(np.array(where), rows.num_rows))
    if len(parts) == 1:
        return _record_batch(parts[0], reader)
    rank_of_row = np.argsort(np.concatenate(order), kind="stable")
    columns = {name: np.concatenate([it[name] for it in parts])[rank_of_row] for name in parts[0]}
    return _record_batch(columns, reader)


def _expand(
    instances: Sequence[Instance], rows: Rows, vocabulary: Vocabulary, collectives: Column
) -> dict[str, Column]:
    """Return the absolute columns of instances of one template, instance by instance.

    ``collectives`` are the launch ids of collectives, as the log numbers them, from 1.
    """
    num = len(instances)
    ranks = np.array([instance.ranks for instance in instances], dtype=np.int32)
    sips = np.array([instance.sips for instance in instances], dtype=np.int32)
    position = np.maximum(rows["rank"], 0)
    peer = rows["peer"]
    template = instances[0].template

    def per_instance(values: Column) -> Column:
        return np.repeat(values, rows.num_rows)

    columns = {name: np.tile(rows[name], num) for name in _SAME}
    columns["launch"] = per_instance(np.array([instance.launch_id for instance in instances]))
    nothing = (0,) * len(instances[0].ranks)
    after = np.array([instance.after or nothing for instance in instances])[:, position].ravel()
    columns["after"] = np.where(after < 0, collectives[np.maximum(-after, 0)], after)
    columns["rank"] = ranks[:, position].ravel()
    columns["sip"] = sips[:, position].ravel()
    if template.kind == "kernel":
        columns["peer"] = np.tile(peer, num)
    else:
        columns["peer"] = np.where(peer >= 0, ranks[:, np.maximum(peer, 0)], -1).ravel()
    for edge in ("start", "end"):
        absolute = absolute_ps(instances, rows[f"{edge}_ps"]).ravel()
        columns[f"{edge}_ps"] = absolute
        columns[f"{edge}_ns"] = absolute / 1000
    for side in ("src", "dst"):
        columns[f"{side}_address"] = _addresses(instances, rows[f"{side}_param"])
    name, algorithm = vocabulary.code(template.name), vocabulary.code(template.algorithm)
    streams = np.array([vocabulary.code(instance.stream) for instance in instances], dtype=np.int32)
    columns["name"] = np.full(num * rows.num_rows, name, dtype=np.int32)
    columns["algorithm"] = np.full(num * rows.num_rows, algorithm, dtype=np.int32)
    columns["stream"] = per_instance(streams)
    return columns


def _addresses(instances: Sequence[Instance], param: Column) -> Column:
    width = max(int(param.max(initial=-1)), *(len(item.addresses) for item in instances)) + 1
    # One column more, of zeros, is what index -1 (no parameter) reads.
    table = np.zeros((len(instances), width + 1), dtype=np.int64)
    for index, item in enumerate(instances):
        table[index, : len(item.addresses)] = item.addresses
    return table[:, param].ravel()


def _record_batch(columns: dict[str, Column], reader: RowReader) -> pa.RecordBatch:
    texts = reader.vocabulary.texts
    arrays = []
    for field in SCHEMA:
        values = columns[field.name]
        if pa.types.is_dictionary(field.type):
            used = np.flatnonzero(np.bincount(values))
            place = np.zeros(len(texts), dtype=np.int32)
            place[used] = np.arange(len(used))
            names = pa.array([texts[code] for code in used], pa.string())
            arrays.append(pa.DictionaryArray.from_arrays(pa.array(place[values]), names))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
