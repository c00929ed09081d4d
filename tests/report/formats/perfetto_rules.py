"""Perfetto's own format, read with its own definitions, and its rules as a reader has them."""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_PACKETS: Any = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the perfetto package"
)
BEGIN, END, COUNTER = 1, 2, 4


@dataclass
class NativeSlice:
    name: str
    kind: str
    start_ns: int
    args: dict[str, Any]
    end_ns: int = -1
    leaving: list[int] = field(default_factory=list)
    arriving: list[int] = field(default_factory=list)


@dataclass
class NativeTrack:
    name: str
    rank: int
    unit: str
    slices: list[NativeSlice] = field(default_factory=list)
    points: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class NativeTrace:
    """All tracks, by the names that lead to them, in the order of display."""

    tracks: dict[str, NativeTrack]
    about: str
    flows: dict[int, tuple[NativeSlice, NativeSlice]]


def packets_of(path: Path) -> list[Any]:
    data = path.read_bytes()
    trace = _PACKETS.Trace()
    trace.ParseFromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    packets: list[Any] = []
    for packet in trace.packet:
        if packet.compressed_packets:
            inner = _PACKETS.Trace()
            inner.ParseFromString(zlib.decompress(packet.compressed_packets))
            packets += inner.packet
        else:
            packets.append(packet)
    return packets


def read_native(path: Path) -> NativeTrace:
    """Return what a file says after checking every rule."""
    packets = packets_of(path)
    interned = packets[0].interned_data
    assert packets[0].sequence_flags == 1
    assert {packet.trusted_packet_sequence_id for packet in packets} == {1}
    described = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in packets
        if packet.HasField("track_descriptor")
    }
    tracks = {
        uuid: NativeTrack(value.name, value.sibling_order_rank, value.counter.unit_name)
        for uuid, value in described.items()
    }
    open_slices: dict[int, list[NativeSlice]] = defaultdict(list)
    times: dict[int, int] = defaultdict(int)
    for packet in packets:
        if packet.HasField("track_event"):
            event = packet.track_event
            assert packet.sequence_flags == 2
            assert packet.timestamp >= times[event.track_uuid], "packets of a track are in order"
            times[event.track_uuid] = packet.timestamp
            _take(event, packet.timestamp, tracks[event.track_uuid], open_slices, interned)
    assert not any(open_slices.values())
    (root,) = (uuid for uuid, value in described.items() if not value.HasField("parent_uuid"))
    return NativeTrace(
        dict(_in_order("", root, described, tracks)),
        described[root].description,
        _flows(tracks.values()),
    )


def _take(
    event: Any,
    time_ns: int,
    track: NativeTrack,
    open_slices: dict[int, list[NativeSlice]],
    interned: Any,
) -> None:
    inside = open_slices[event.track_uuid]
    if event.type == COUNTER:
        assert track.unit
        track.points.append((time_ns, event.double_counter_value))
    elif event.type == BEGIN:
        assert not track.unit
        name, kind = (
            {text.iid: text.name for text in texts}[iid]
            for texts, iid in (
                (interned.event_names, event.name_iid),
                (interned.event_categories, event.category_iids[0]),
            )
        )
        args = dict(_named(event.debug_annotations, interned))
        native_slice = NativeSlice(name, kind, time_ns, args, leaving=list(event.flow_ids))
        track.slices.append(native_slice)
        inside.append(native_slice)
    else:
        assert event.type == END
        inside[-1].end_ns = time_ns
        inside.pop().arriving.extend(event.terminating_flow_ids)


def _named(annotations: Any, interned: Any) -> Any:
    names = {
        annotation_name.iid: annotation_name.name
        for annotation_name in interned.debug_annotation_names
    }
    return [
        (names[annotation.name_iid], _value(annotation, interned)) for annotation in annotations
    ]


def _value(annotation: Any, interned: Any) -> Any:
    if annotation.dict_entries:
        return dict(_named(annotation.dict_entries, interned))
    which = annotation.WhichOneof("value")
    if which == "string_value_iid":
        texts = {
            string_value.iid: string_value.str
            for string_value in interned.debug_annotation_string_values
        }
        return texts[annotation.string_value_iid].decode()
    if which is None:
        return [_value(array_value, interned) for array_value in annotation.array_values]
    return getattr(annotation, which)


def _in_order(before: str, parent: int, described: Any, tracks: Any) -> Any:
    # As explicit ordering has it: by rank, whatever the names.
    assert described[parent].child_ordering == 3
    children = [uuid for uuid, value in described.items() if value.parent_uuid == parent]
    ranks = [tracks[uuid].rank for uuid in children]
    assert len(set(ranks)) == len(ranks)
    names = [tracks[uuid].name for uuid in children]
    assert len(set(names)) == len(names), "readers join tracks with one name"
    for uuid in sorted(children, key=lambda uuid: tracks[uuid].rank):
        yield before + tracks[uuid].name, tracks[uuid]
        yield from _in_order(f"{before}{tracks[uuid].name}/", uuid, described, tracks)


def _flows(tracks: Any) -> dict[int, tuple[NativeSlice, NativeSlice]]:
    sources: dict[int, NativeSlice] = {}
    targets: dict[int, NativeSlice] = {}
    for item in (entry for track in tracks for entry in track.slices):
        for ids, result in ((item.leaving, sources), (item.arriving, targets)):
            for number in ids:
                assert number not in result
                result[number] = item
    assert sources.keys() == targets.keys()
    for number, source in sources.items():
        assert source.start_ns <= targets[number].end_ns, "arrows lead forward in time"
    return {number: (source, targets[number]) for number, source in sources.items()}
