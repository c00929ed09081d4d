"""The parts of a saved run, and their columns: a ZIP file of Parquet tables and JSON (ADR-0152)."""

from __future__ import annotations

import pyarrow as pa

from kernbench.op_log import ROW_COLUMNS, TEXT_COLUMNS, WIDE_COLUMNS

FORMAT = 2
"""Raised with every change that makes older files mean something else."""
ABOUT, TEMPLATES, ROWS, COMMANDS, HOSTS, RANGES = (
    "run.json", "templates.parquet", "rows.parquet", "commands.parquet", "hosts.parquet",
    "ranges.parquet",
)  # fmt: skip
SOURCES = "sources/"
"""The texts of source files, numbered as ``run.json`` lists them."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
_INT = pa.int64()

TEMPLATE_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("kind", pa.string()),
        ("algorithm", pa.string()),
        ("duration_ps", _INT),
        ("flops", _INT),
        ("hbm_bytes", _INT),
        ("message_bytes", _INT),
        ("bound_ps", _INT),
        ("comm_ps", _INT),
        ("family", pa.string()),
        ("engine_busy_ps", pa.map_(pa.string(), _INT)),
        ("limits_ps", pa.map_(pa.string(), _INT)),
        ("hbm_bytes_by_rank", pa.list_(_INT)),
        ("given", pa.string()),
        ("energy_pj", pa.map_(pa.string(), _INT)),
        ("num_rows", _INT),
    ]
)
"""One row per template, ``given`` as JSON; its rows are the next ``num_rows`` of all rows."""

ROW_SCHEMA = pa.schema(
    [
        (name, _TEXT if name in TEXT_COLUMNS else _INT if name in WIDE_COLUMNS else pa.int32())
        for name in ROW_COLUMNS
    ]
)

COMMAND_SCHEMA = pa.schema(
    [
        ("launch", _INT),
        ("template", pa.int32()),
        ("stream", _TEXT),
        ("rank", pa.list_(pa.int32())),
        ("sip", pa.list_(pa.int32())),
        ("start_ps", pa.list_(_INT)),
        ("end_ps", pa.list_(_INT)),
        ("after", pa.list_(_INT)),
        ("addresses", pa.list_(_INT)),
        ("site_file", pa.list_(pa.string())),
        ("site_line", pa.list_(pa.int32())),
    ]
)
"""One row per command, in the order of the log; lists are by rank, addresses by parameter.

Sites are those of a collective's callers."""

HOST_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("kind", _TEXT),
        ("label", _TEXT),
        ("start_ps", _INT),
        ("end_ps", _INT),
    ]
)

WAITS = "waits.parquet"
WAIT_SCHEMA = pa.schema([("rank", pa.int32()), ("end_ps", _INT), ("after", _INT)])
WOKEN = "woken.parquet"
WOKEN_SCHEMA = pa.schema([("rank", pa.int32()), ("end_ps", _INT), ("by", pa.int32())])

RANGE_SCHEMA = pa.schema(
    [("rank", pa.int32()), ("name", _TEXT), ("start_ps", _INT), ("end_ps", _INT)]
)

PARTS = (TEMPLATES, ROWS, COMMANDS, HOSTS, WAITS, WOKEN, RANGES)
"""What every saved run has, with what :data:`ABOUT` says."""
