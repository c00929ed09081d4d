from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import InternalError
from kernbench.op_log import Instance, OpLog
from kernbench.op_log.arrow import batches
from kernbench.op_log.schema import SCHEMA
from tests.logs import LogBuilder, kernel, ring, small_log


def placed(instance: Instance, time_ps: int) -> int:
    """Oracle: when a time of the template falls in an instance that may have been slowed down."""
    base, lead = min(instance.starts_ps), max(instance.starts_ps) - min(instance.starts_ps)
    span, duration = max(instance.ends_ps) - base, instance.template.duration_ps
    if span <= duration or time_ps <= lead:
        return base + time_ps
    late = (time_ps - lead) * max((span - lead) / max(duration - lead, 1), 1.0)
    return base + min(lead + round(late), span)


def rows_one_by_one(log: OpLog) -> list[dict[str, object]]:
    """Oracle: the plain loop over instances and rows."""
    result = []
    for instance in log.instances:
        rows = instance.template.make_rows()
        rows = {
            name: np.broadcast_to(column, len(rows["start_ps"])) for name, column in rows.items()
        }
        for i in range(len(rows["start_ps"])):
            position = int(rows["rank"][i]) if "rank" in rows else 0
            result.append(
                {
                    "launch": instance.launch_id,
                    "rank": instance.ranks[position],
                    "sip": instance.sips[position],
                    "peer": instance.ranks[rows["peer"][i]] if "peer" in rows else -1,
                    "engine": str(rows["engine"][i]),
                    "name": instance.template.name,
                    "start_ps": placed(instance, int(rows["start_ps"][i])),
                    "end_ps": placed(instance, int(rows["end_ps"][i])),
                    "bytes": int(rows["bytes"][i]),
                }
            )
    return result


@pytest.mark.adr("0036-D7")
def test_rows_of_what_was_slowed_down_fill_the_time_that_it_took() -> None:
    builder = LogBuilder()
    alone = builder.launch(kernel(duration_ps=900), 0, 0)
    slowed = Instance(
        alone.template, 1, (0,), (0,), (10_000,), (11_800,), alone.stream, alone.addresses
    )
    builder.log.append(slowed)
    rows = builder.log.to_arrow().to_pylist()
    assert [(row["start_ps"], row["end_ps"]) for row in rows[3:]] == [
        (10_000 + 2 * row["start_ps"], 10_000 + 2 * row["end_ps"]) for row in rows[:3]
    ]
    assert rows[-1]["end_ps"] == 11_800


@pytest.mark.adr("0009-D1")
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 10**9)), max_size=12),
    st.integers(1, 40),
)
def test_expanded_rows_equal_a_plain_loop_in_order_for_any_batch_size(
    launches: list[tuple[int, int, int]], batch_rows: int
) -> None:
    templates = [kernel("a"), kernel("b", 700_001), ring(3), ring(4)]
    builder = LogBuilder()
    for which, rank, start_ps in launches:
        if which < 2:
            builder.launch(templates[which], rank, start_ps)
        else:
            ranks = [rank + 3 * i for i in range(which + 1)]
            builder.collective(templates[which], ranks, [start_ps + i for i in range(which + 1)])
    table = pa.Table.from_batches(list(batches(builder.log, batch_rows)), SCHEMA)
    expected = rows_one_by_one(builder.log)
    names = list(expected[0]) if expected else []
    assert table.num_rows == len(expected)
    assert table.select(names).to_pylist() == expected


def test_a_row_names_addresses_and_source_lines() -> None:
    read, _, write = small_log().to_arrow().slice(0, 3).to_pylist()
    assert (read["src_address"], read["dst_address"]) == (4096, 0)
    assert (write["src_address"], write["dst_address"]) == (0, 8192)
    assert (read["file"], read["line"], write["line"]) == ("k.py", 7, 11)
    assert (read["start_ns"], read["src_space"], read["dst_space"]) == (500.0, "hbm", "tcm")


@pytest.mark.adr("0009-D5")
def test_a_launch_without_rows_is_one_row_per_rank_with_the_totals() -> None:
    builder = LogBuilder()
    empty = kernel("copy", 5_000, kind="copy", flops=0, hbm_bytes=7, make_rows=dict)
    builder.launch(empty, 1, 600_000)
    (row,) = builder.log.to_arrow().to_pylist()
    assert (row["engine"], row["kind"], row["rank"], row["bytes"]) == ("host", "copy", 1, 7)
    assert (row["start_ps"], row["end_ps"]) == (600_000, 605_000)


def test_an_empty_log_is_an_empty_table_with_all_columns(tmp_path: Path) -> None:
    assert OpLog().to_arrow().schema == SCHEMA
    assert OpLog().write_parquet(tmp_path / "empty.parquet", machine="m", ranks=1) == 0
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0


@pytest.mark.parametrize(
    "rows",
    [
        {"engine": np.array("gemm"), "start_ps": np.arange(3), "end_ps": np.arange(3)},
        {"start_ps": np.arange(3), "end_ps": np.arange(2)},
        {"colour": np.arange(3)},
    ],
)
def test_rows_that_break_the_contract_are_named(rows: dict[str, np.ndarray]) -> None:
    builder = LogBuilder()
    builder.launch(kernel("broken", make_rows=lambda: rows), 0, 0)
    with pytest.raises(InternalError, match="rows of broken"):
        builder.log.to_arrow()


@pytest.mark.adr("0009-D2")
def test_two_equal_runs_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        small_log().write_parquet(tmp_path / name, machine="ahbm:2", ranks=2)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.adr("0009-D3")
def test_parquet_holds_the_table_the_run_and_the_meaning_of_each_column(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    log = small_log()
    num_rows = log.write_parquet(path, machine="ahbm:2", ranks=2)
    table = pq.read_table(path)
    assert table.num_rows == num_rows == 14
    assert table.to_pylist() == log.to_arrow().to_pylist()
    metadata = table.schema.metadata
    assert metadata[b"kernbench.machine"] == b"ahbm:2"
    assert metadata[b"kernbench.ranks"] == b"2"
    assert metadata[b"kernbench.schema_version"] == b"2"
    assert all(field.metadata[b"doc"] for field in table.schema)


def test_columns_can_be_grouped_and_summed() -> None:
    log = small_log()
    table = log.to_arrow()
    kernels = table.filter(pc.not_equal(table["engine"].cast(pa.string()), "link"))
    by_rank = kernels.group_by("rank").aggregate([("flops", "sum"), ("bytes", "sum")])
    assert sorted(by_rank.to_pylist(), key=lambda row: row["rank"]) == [
        {"rank": rank, "flops_sum": 6_080, "bytes_sum": 8_000} for rank in (0, 1)
    ]
    assert pc.sum(table["flops"]).as_py() == sum(
        instance.template.flops for instance in log.instances
    )


@pytest.mark.adr("0009-D4")
def test_a_large_collective_streams_to_disk_in_batches(tmp_path: Path) -> None:
    num_ranks = 400
    builder = LogBuilder()
    template = ring(num_ranks)
    for launch in range(3):
        builder.collective(template, range(num_ranks), [launch * 10**9] * num_ranks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "log.parquet"
    num_rows = builder.log.write_parquet(path, machine="m", ranks=num_ranks)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert num_rows == 3 * num_ranks * (num_ranks - 1)
    file = pq.ParquetFile(path)
    assert file.metadata.num_row_groups == 6
    assert grown_kib < 200 * 1024
    assert isinstance(builder.log.instances[0], Instance)
