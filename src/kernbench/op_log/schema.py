"""The columns of the op log on disk, and what they mean."""

from __future__ import annotations

from importlib import metadata

import pyarrow as pa

SCHEMA_VERSION = 2

_TEXT = pa.dictionary(pa.int32(), pa.string())

_COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("launch", pa.int64(), "id of the launch or collective, unique in the run"),
    ("rank", pa.int32(), "rank that issued it"),
    ("sip", pa.int32(), "SIP that it ran on"),
    ("cube", pa.int32(), "cube of that SIP; -1: all or none"),
    ("pe_first", pa.int32(), "first PE of the row; -1: none"),
    ("pe_count", pa.int32(), "how many PEs the row stands for"),
    ("engine", _TEXT, "dma_in | gemm | math | dma_out | link | host"),
    ("kind", _TEXT, "dma_read | gemm | math | reduce | dma_write | send | copy | ..."),
    ("name", _TEXT, "kernel, or op of the collective"),
    ("algorithm", _TEXT, "algorithm of the collective; empty elsewhere"),
    ("stream", _TEXT, "stream of the SIP that it was queued on"),
    ("program_first", pa.int64(), "first program of the row; -1: none"),
    ("program_count", pa.int64(), "how many programs the row stands for"),
    ("count", pa.int64(), "how many commands the row stands for (programs x iterations)"),
    ("start_ps", pa.int64(), "start in simulated picoseconds"),
    ("end_ps", pa.int64(), "end in simulated picoseconds"),
    ("start_ns", pa.float64(), "start_ps / 1000"),
    ("end_ns", pa.float64(), "end_ps / 1000"),
    ("busy_ps", pa.int64(), "engine time in [start, end], averaged over the row's engines"),
    ("bytes", pa.int64(), "bytes moved"),
    ("flops", pa.int64(), "floating-point operations, a multiply-add counted twice"),
    ("src_space", _TEXT, "hbm | tcm | host | link | none"),
    ("src_address", pa.int64(), "address of the source tensor; 0: none"),
    ("dst_space", _TEXT, "hbm | tcm | host | link | none"),
    ("dst_address", pa.int64(), "address of the destination tensor; 0: none"),
    ("step", pa.int32(), "step of the collective; -1 elsewhere"),
    ("chunk", pa.int32(), "chunk of the collective; -1 elsewhere"),
    ("peer", pa.int32(), "the other rank of a transfer; -1 elsewhere"),
    ("link", pa.int32(), "index of the machine's link; -1 elsewhere"),
    ("file", _TEXT, "source file of the command; empty: unknown"),
    ("line", pa.int32(), "source line of the command; 0: unknown"),
    ("after", pa.int64(), "launch that it waited for until it started; 0: none but its own"),
)

SCHEMA = pa.schema([pa.field(name, kind, False, {"doc": doc}) for name, kind, doc in _COLUMNS])


def run_schema(machine: str, ranks: int) -> pa.Schema:
    """Return the schema with metadata of the run, which equal runs share."""
    return SCHEMA.with_metadata(
        {
            "kernbench.schema_version": str(SCHEMA_VERSION),
            "kernbench.version": metadata.version("kernbench"),
            "kernbench.machine": machine,
            "kernbench.ranks": str(ranks),
        }
    )
