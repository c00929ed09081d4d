"""Perfetto's own format says what the JSON says, by the official definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernbench.analysis import critical_path
from kernbench.hardware import load_machine
from kernbench.op_log import HostRange, OpLog
from kernbench.report import write_trace
from kernbench.report.formats.track_events import double, fixed64, integer, varint
from tests.logs import LogBuilder, kernel, ring, small_log
from tests.report.formats.perfetto_rules import NativeTrace, packets_of, read_native
from tests.report.trace_rules import Events, nanoseconds, read_checked

MACHINE = load_machine("ahbm:16")


def written(log: OpLog, folder: Path, name: str = "t.pftrace", **options: Any) -> NativeTrace:
    write_trace(log, MACHINE, folder / name, **options)
    return read_native(folder / name)


def example() -> OpLog:
    log = small_log()
    for name, start_ps, end_ps in [("inner", 200_000, 300_000), ("outer", 100_000, 500_000)]:
        log.host_ranges.append(HostRange(1, name, start_ps, end_ps))
    return log


def json_slices(events: Events) -> dict[str, list[tuple[str, int, int, Any]]]:
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {
        (e["pid"], e["tid"]): f"{groups[e['pid']]}/{e['args']['name']}"
        for e in events
        if e["name"] == "thread_name"
    }
    slices: dict[str, list[tuple[str, int, int, Any]]] = {name: [] for name in tracks.values()}
    for e in events:
        if e["ph"] == "X":
            start_ns = nanoseconds(e, "ts")
            shown = (e["name"], start_ns, start_ns + nanoseconds(e, "dur"), e["args"])
            slices[tracks[e["pid"], e["tid"]]].append(shown)
    return slices


@pytest.mark.adr("0010-D8")
@pytest.mark.parametrize("name", ["t.pftrace", "t.perfetto-trace", "t.pftrace.gz"])
def test_the_native_format_has_the_slices_of_the_json(name: str, tmp_path: Path) -> None:
    log = example()
    path = critical_path(log)
    result = written(log, tmp_path, name, critical_path=path)
    write_trace(log, MACHINE, tmp_path / "t.json", critical_path=path)
    events = read_checked(tmp_path / "t.json")
    shown = {
        name: [(item.name, item.start_ns, item.end_ns, item.args) for item in track.slices]
        for name, track in result.tracks.items()
        if track.slices
    }
    assert shown == json_slices(events)
    points = sum(len(track.points) for track in result.tracks.values())
    assert points == sum(e["ph"] == "C" for e in events)
    assert len(result.flows) == sum(e["ph"] == "s" for e in events) == 6


@pytest.mark.adr("0010-D8")
def test_tracks_are_in_order_hosts_first_and_numbers_by_value(tmp_path: Path) -> None:
    builder = LogBuilder()
    for rank in (10, 2, 0):
        builder.launch(kernel(), rank, 500_000)
    builder.collective(ring(2), (2, 10), (1_600_000, 1_700_000))
    result = written(builder.log, tmp_path, critical_path=critical_path(builder.log))
    groups = [name for name in result.tracks if "/" not in name]
    assert groups == [
        *("critical path", "rank 0", "rank 2", "rank 10"),
        *("SIP 0", "SIP 2", "SIP 10", "links"),
    ]
    engines = [name for name in result.tracks if name.startswith("SIP 10/")]
    assert engines == [
        f"SIP 10/{name}"
        for name in (
            *("stream comm", "stream compute", "dma_in", "gemm", "dma_out"),
            *("HBM bandwidth", "power"),
        )
    ]
    assert result.about == "machine: ahbm, sips: 16"


def test_counters_of_memory_and_links_have_units_and_end_at_zero(tmp_path: Path) -> None:
    result = written(small_log(), tmp_path)
    counters = {name: track for name, track in result.tracks.items() if track.unit == "GB/s"}
    first, second = (MACHINE.links[index].name for index in (0, 1))
    assert counters.keys() == {
        *("SIP 0/HBM bandwidth", "SIP 1/HBM bandwidth"),
        *(f"links/{name} bandwidth" for name in (first, second)),
    }
    assert result.tracks["SIP 0/power"].unit == "W"
    # 512 bytes in 0.15 us, the one that the first rank waits included.
    assert counters[f"links/{first} bandwidth"].points == [(1_400, 3.413), (1_550, 0.0)]
    assert all(track.points[-1][1] == 0 for track in counters.values())


def test_kernels_say_what_they_were_given(tmp_path: Path) -> None:
    builder = LogBuilder()
    value = {"grid": [4, 1, 1], "arguments": {"n": 250, "BLOCK": "64"}, "shapes": [[4], [4, 8]]}
    builder.launch(kernel(launched_with=value), 0, 500_000)
    (shown,) = written(builder.log, tmp_path).tracks["SIP 0/stream compute"].slices
    assert {key: shown.args[key] for key in value} == value
    assert shown.args["flops"] == 6_000


def test_arrows_connect_launches_with_kernels_and_senders_with_receivers(tmp_path: Path) -> None:
    result = written(small_log(), tmp_path)
    ends = sorted((source.name, target.name) for source, target in result.flows.values())
    assert ends == [
        *[("all_gather", "all_gather")] * 2,
        *[("launch gelu", "gelu")] * 2,
        *[("launch matmul", "matmul")] * 2,
    ]


def test_equal_timelines_are_equal_bytes_and_many_slices_are_thinned(tmp_path: Path) -> None:
    builder = LogBuilder()
    template = kernel("k", 1_000_000)
    for index in range(5_000):
        builder.launch(template, 0, index * 1_100_000)
    for name in ("a.pftrace", "b.pftrace"):
        write_trace(builder.log, MACHINE, tmp_path / name, most_slices=1_000)
    assert (tmp_path / "a.pftrace").read_bytes() == (tmp_path / "b.pftrace").read_bytes()
    native = read_native(tmp_path / "a.pftrace")
    kernels = native.tracks["SIP 0/stream compute"].slices
    assert sum(kernel.args.get("merged", 1) for kernel in kernels) == 5_000
    assert len(kernels) < 1_000


@pytest.mark.campaign
def test_packets_are_compressed_in_parts_of_less_than_the_format_allows(tmp_path: Path) -> None:
    builder = LogBuilder()
    for index in range(9_000):
        builder.launch(kernel(f"kernel {index}", 1_000_000), 0, index * 1_100_000)
    write_trace(builder.log, MACHINE, tmp_path / "t.pftrace")
    write_trace(builder.log, MACHINE, tmp_path / "t.pftrace.gz")
    native: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = native.Trace()
    trace.ParseFromString((tmp_path / "t.pftrace").read_bytes())
    parts = [len(packet.compressed_packets) for packet in trace.packet]
    assert len(parts) > 1
    assert all(0 < size < 512 << 10 for size in parts)
    plain, packed = (packets_of(tmp_path / name) for name in ("t.pftrace.gz", "t.pftrace"))
    assert plain == packed


def test_an_empty_log_is_a_trace(tmp_path: Path) -> None:
    assert written(OpLog(), tmp_path).tracks == {}


def test_fields_are_encoded_as_the_library_of_protocol_buffers_does() -> None:
    native: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    for value in (0, 1, 127, 128, 300, 2**35, 2**63 - 1, -1, -(2**40)):
        serialize = native.DebugAnnotation(int_value=value).SerializeToString()
        assert integer(4, value) == serialize
    assert double(44, -0.1) == native.TrackEvent(double_counter_value=-0.1).SerializeToString()
    assert fixed64(47, 7) == native.TrackEvent(flow_ids=[7]).SerializeToString()[:10]
    assert varint(2**64 - 1) == varint(-1)
