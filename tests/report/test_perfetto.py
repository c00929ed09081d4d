from __future__ import annotations

import gzip
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis import critical_path
from kernbench.hardware import load_machine
from kernbench.memory import AllocationLog
from kernbench.op_log import HostRange, HostSpan, OpLog
from kernbench.report import write_trace
from tests.logs import LogBuilder, kernel, ring, small_log
from tests.report.trace_rules import Events, read_checked

MACHINE = load_machine("ahbm:4")


def traced(log: OpLog, path: Path, **options: Any) -> Events:
    write_trace(log, MACHINE, path / "trace.json", **options)
    return read_checked(path / "trace.json")


def track_names(events: Events) -> list[str]:
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return [
        f"{processes[e['pid']]}/{e['args']['name']}" for e in events if e["name"] == "thread_name"
    ]


def slices(events: Events, track: str) -> Events:
    names = track_names(events)
    ids = [(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"]
    where = ids[names.index(track)]
    return [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == where]


@pytest.mark.adr("0010-D4")
def test_there_is_a_track_per_rank_stream_engine_and_link(tmp_path: Path) -> None:
    events = traced(small_log(), tmp_path)
    sip = ["stream comm", "stream compute", "dma_in", "gemm", "dma_out"]
    links = [link.name for link in MACHINE.links[:2]]
    assert track_names(events) == [
        *("rank 0/host", "rank 1/host"),
        *(f"SIP {number}/{name}" for number in (0, 1) for name in sip),
        *(f"links/link {name}" for name in links),
    ]
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert len(set(order.values())) == len(order)


def test_a_critical_path_has_a_track_of_its_own_that_leaves_no_time_out(tmp_path: Path) -> None:
    log = small_log()
    path = critical_path(log)
    events = traced(log, tmp_path, critical_path=path)
    assert track_names(events)[0] == "critical path/critical path"
    shown = slices(events, "critical path/critical path")
    assert sum(item["args"]["duration_ps"] for item in shown) == log.end_ps
    launches = {item["args"]["launch"]: item["name"] for item in shown if "launch" in item["args"]}
    assert launches == {
        item.launch: f"{item.name}, rank {item.rank}" for item in path if item.launch
    }
    thinned = slices(
        traced(log, tmp_path, critical_path=path * 500, most_slices=1),
        "critical path/critical path",
    )
    assert len(thinned) <= 64


def test_a_name_with_gz_asks_for_a_compressed_file_with_the_same_timeline(tmp_path: Path) -> None:
    log = small_log()
    for name in ("a.json", "a.json.gz", "b.json.gz"):
        write_trace(log, MACHINE, tmp_path / name)
    packed = (tmp_path / "a.json.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "a.json").read_bytes()
    assert packed == (tmp_path / "b.json.gz").read_bytes()


def test_slices_name_kernels_collectives_steps_and_waits(tmp_path: Path) -> None:
    events = traced(small_log(), tmp_path)
    kernels = slices(events, "SIP 1/stream compute")
    assert [(e["name"], e["ts"], e["dur"]) for e in kernels] == [
        ("matmul", 0.5, 1.0),
        ("gelu", 1.5, 0.3),
    ]
    assert kernels[0]["args"]["flops"] == 6_000
    assert [e["name"] for e in slices(events, "rank 0/host")] == [
        *("launch matmul", "launch gelu", "wait all_gather")
    ]
    (transfer,) = slices(events, f"links/link {MACHINE.links[1].name}")
    assert transfer["name"] == "all_gather step 0 chunk 1"
    assert transfer["args"]["to_rank"] == 0
    gemm, _ = slices(events, "SIP 0/gemm")
    assert gemm["args"]["source"] == "k.py:9"


@pytest.mark.adr("0010-D5")
def test_arrows_lead_from_launches_to_kernels_and_from_senders_to_receivers(tmp_path: Path) -> None:
    events = traced(small_log(), tmp_path)
    starts = Counter(e["name"] for e in events if e["ph"] == "s")
    assert starts == {"launch": 4, "transfer": 2}


def test_named_ranges_lie_in_each_other_above_the_host_and_crossing_ones_beside(
    tmp_path: Path,
) -> None:
    log = small_log()
    for name, start_ps, end_ps in [("inner", 200_000, 300_000), ("outer", 100_000, 500_000)]:
        log.host_ranges.append(HostRange(1, name, start_ps, end_ps))
    log.host_ranges.append(HostRange(1, "crossing", 400_000, 600_000))
    events = traced(log, tmp_path)
    assert track_names(events)[:4] == [
        *("rank 0/host", "rank 1/ranges", "rank 1/ranges 1", "rank 1/host"),
    ]
    assert [(e["name"], e["ts"], e["dur"]) for e in slices(events, "rank 1/ranges")] == [
        ("outer", 0.1, 0.4),
        ("inner", 0.2, 0.1),
    ]
    assert [e["name"] for e in slices(events, "rank 1/ranges 1")] == ["crossing"]


def test_the_bandwidth_counter_ends_at_zero(tmp_path: Path) -> None:
    events = traced(small_log(), tmp_path)
    values = [
        (e["ts"], e["args"]["GB/s"]) for e in events if e["ph"] == "C" and "GB/s" in e["args"]
    ]
    # 4 000 bytes in 1 us, in 0.3 us; 512 bytes of the all-gather in 0.15 us on rank 0.
    assert values[:4] == [(0.5, 4.0), (1.4, 7.413), (1.5, 16.747), (1.55, 13.333)]
    assert values[4] == (1.8, 0.0)


@pytest.mark.adr("0160-D3")
def test_the_power_counter_begins_and_ends_with_the_idle_device(tmp_path: Path) -> None:
    events = traced(small_log(), tmp_path)
    idle_w = 60.0
    for pid in {e["pid"] for e in events if e["ph"] == "C" and e["name"] == "power"}:
        drawn = [
            e["args"]["W"]
            for e in events
            if e["ph"] == "C" and e["pid"] == pid and "W" in e["args"]
        ]
        assert (drawn[0], drawn[-1]) == (idle_w, idle_w)
        assert min(drawn) == idle_w


def test_the_memory_counter_has_every_peak(tmp_path: Path) -> None:
    log = small_log()
    log.allocations = allocations = AllocationLog()
    size = 1 << 20
    for number in range(3_000):
        began = allocations.began(0, 1, size, size, 1_000_000 * number, "x", (), "")
        if number != 1_717:
            allocations.ended(began, 1_000_000 * number + 500_000)
    events = traced(log, tmp_path)
    counted = [(e["ts"], e["args"]["MiB"]) for e in events if e["name"] == "memory"]
    # One of 3,000 that come and go stays.
    assert len(counted) <= 2_000
    assert max(counted, key=lambda item: item[1])[1] == 2.0
    assert {value for at, value in counted if at < 1_717} == {1.0}
    assert {value for at, value in counted if 1_719 < at < 2_999} == {2.0}


@pytest.mark.adr("0010-D6")
def test_overlapping_rows_of_an_engine_become_one_slice_that_says_so(tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.launch(kernel("a", 900_000), 0, 0)
    builder.launch(kernel("b", 900_000), 0, 100_000)
    events = traced(builder.log, tmp_path)
    (merged,) = slices(events, "SIP 0/gemm")
    assert (merged["ts"], merged["dur"], merged["args"]["merged"]) == (0.3, 0.4, 2)
    (read,) = slices(events, "SIP 0/dma_in")
    assert read["args"]["bytes"] == 6_000


def test_a_huge_log_is_thinned_and_no_byte_is_lost(tmp_path: Path) -> None:
    builder = LogBuilder()
    template = kernel("k", 1_000_000)
    for index in range(5_000):
        builder.launch(template, 0, index * 1_100_000)
    events = traced(builder.log, tmp_path, most_slices=1_000)
    assert sum(e["ph"] == "X" for e in events) <= 1_000
    reads = slices(events, "SIP 0/dma_in")
    assert sum(e["args"].get("merged", 1) for e in reads) == 5_000
    assert sum(e["args"]["bytes"] for e in reads) == 5_000 * 3_000
    counters = [e["name"] for e in events if e["ph"] == "C"]
    assert all(counters.count(name) <= 2_000 for name in ("HBM bandwidth", "power"))


def test_equal_logs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_trace(small_log(), MACHINE, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_empty_log_is_a_valid_trace(tmp_path: Path) -> None:
    assert traced(OpLog(), tmp_path) == []


work = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "collective", "wait", "range"]),
        st.integers(0, 3),
        st.integers(0, 5_000),
        st.integers(0, 3_000),
    ),
    max_size=15,
)


@pytest.mark.slow
@settings(deadline=None)
@given(work, st.integers(1, 200))
def test_any_log_gives_a_valid_trace(
    given_work: list[tuple[str, int, int, int]], most_slices: int
) -> None:
    builder = LogBuilder()
    templates = [kernel(f'k{i} "quoted"', 100 * i) for i in range(31)]
    for kind, rank, start_ps, duration_ps in given_work:
        if kind == "kernel":
            builder.launch(templates[duration_ps // 100], rank, start_ps)
        elif kind == "collective":
            ranks = [rank, (rank + 1) % 4, (rank + 2) % 4]
            builder.collective(ring(3, duration_ps), ranks, [start_ps, start_ps + 700, start_ps])
        elif kind == "range":
            named = HostRange(rank, "part", start_ps, start_ps + duration_ps)
            builder.log.host_ranges.append(named)
        else:
            span = HostSpan(rank, "wait", "", start_ps, start_ps + duration_ps)
            builder.log.host_spans.append(span)
    with tempfile.TemporaryDirectory() as folder:
        traced(builder.log, Path(folder), most_slices=most_slices)
