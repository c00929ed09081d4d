"""Chakra's execution traces, read by the library of protocol buffers, and run again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_descriptors: Any = pytest.importorskip("google.protobuf.descriptor_pb2", reason="needs protobuf")

COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
# The messages of et_def.proto as far as our files have them: fields, their numbers and types.
_TYPES = {"uint64": 4, "int64": 3, "int32": 5, "bool": 8, "string": 9, "enum": 5}
_MESSAGES = {
    "AttributeProto": {
        "name": (1, "string"), "int32_val": (7, "int32"), "int64_val": (9, "int64"),
        "uint64_val": (13, "uint64"), "bool_val": (27, "bool"), "string_val": (29, "string"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "*AttributeProto")},
    "IOInfo": {"values": (1, "string"), "shapes": (2, "string"), "types": (3, "string")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "enum"),
        "ctrl_deps": (4, "*uint64"), "data_deps": (5, "*uint64"),
        "start_time_micros": (6, "uint64"), "duration_micros": (7, "uint64"),
        "inputs": (8, "IOInfo"), "outputs": (9, "IOInfo"), "attr": (10, "*AttributeProto"),
    },
}  # fmt: skip


def _classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pool, message_factory

    file = _descriptors.FileDescriptorProto(
        name="chakra_of_tests.proto", package="kernbench_tests", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message_type = file.message_type.add(name=name)
        for key, (number, kind) in fields.items():
            label, kind = (3, kind[1:]) if kind.startswith("*") else (1, kind)
            field = message_type.field.add(name=key, number=number, label=label)
            if kind in _MESSAGES:
                field.type, field.type_name = 11, f".kernbench_tests.{kind}"
            else:
                field.type = _TYPES[kind]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kernbench_tests.{name}"))
        for name in _MESSAGES
    }


@dataclass
class ReadNode:
    number: int
    name: str
    kind: int
    after: tuple[int, ...]
    start_us: int
    duration_us: int
    shapes: str
    attributes: dict[str, Any]


@dataclass
class ReadTrace:
    about: dict[str, Any]
    nodes: list[ReadNode]


def read_trace(path: Path) -> ReadTrace:
    """Return a file's nodes after checking that every one of its bytes is known."""
    classes, data = _classes(), path.read_bytes()
    parts, at = [], 0
    while at < len(data):
        size, shift = 0, 0
        while data[at] & 0x80:
            size, shift, at = size | (data[at] & 0x7F) << shift, shift + 7, at + 1
        size, at = size | data[at] << shift, at + 1
        parts.append(data[at : at + size])
        at += size
    about = _parsed(classes["GlobalMetadata"], parts[0])
    assert about.version == "1.0.0"
    nodes = []
    for part in parts[1:]:
        node = _parsed(classes["Node"], part)
        nodes.append(
            ReadNode(
                node.id, node.name, node.type, (*node.ctrl_deps, *node.data_deps),
                node.start_time_micros, node.duration_micros, node.inputs.shapes,
                _attributes(node.attr),
            )
        )  # fmt: skip
    return ReadTrace(_attributes(about.attr), nodes)


def _parsed(kind: Any, data: bytes) -> Any:
    string = kind.FromString(data)
    before = string.ByteSize()
    string.DiscardUnknownFields()
    assert string.ByteSize() == before, "there are no fields that Chakra does not have"
    return string


def _attributes(argument: Any) -> dict[str, Any]:
    attributes = {}
    for item in argument:
        # Zero is not written, so the name says which of them it would be.
        (value,) = [value for _, value in item.ListFields()[1:]] or [0]
        attributes[item.name] = value
    return attributes


def run_again(traces: dict[int, ReadTrace]) -> dict[int, dict[int, int]]:
    """Return when each node of each rank ends, by nothing but the traces: a simulator's replay.

    A node starts when what it depends on has ended; a collective, when all of its ranks could.
    """
    groups: dict[Any, list[tuple[int, ReadNode]]] = {}
    seen: dict[Any, int] = {}
    for rank, trace in traces.items():
        for node in trace.nodes:
            if node.kind in (SEND, RECV):
                key: Any = ("pair", node.attributes["comm_tag"])
            elif node.kind == COLLECTIVE:
                group = node.attributes["pg_name"]
                turn = seen[rank, group] = seen.get((rank, group), 0) + 1
                key = (group, turn)
            else:
                key = (rank, node.number)
            groups.setdefault(key, []).append((rank, node))
    ends: dict[int, dict[int, int]] = {rank: {} for rank in traces}
    waiting = dict(groups)
    while waiting:
        ready = [
            key
            for key, members in waiting.items()
            if all(item in ends[rank] for rank, node in members for item in node.after)
        ]
        assert ready, "the graph has a cycle, or depends on what is not in it"
        for key in ready:
            members = waiting.pop(key)
            before = [ends[rank][item] for rank, node in members for item in node.after]
            start = max(before, default=0)
            for rank, node in members:
                ends[rank][node.number] = start + node.attributes["duration_ps"]
    return ends
