"""Chakra execution traces: a graph of what each rank did, for simulators that run it again.

Source: MLCommons Chakra, schema/protobuf/et_def.proto; attributes as its converter from PyTorch
names them and as ASTRA-sim reads them. A file is a length before every message: GlobalMetadata,
then one Node each.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from kernbench.errors import UsageError
from kernbench.report.formats.rank_view import HostStep, RankCommand, RankView, bytes_of
from kernbench.report.formats.track_events import integer, message, text, varint

_VERSION = "1.0.0"
_COMP, _SEND, _RECV, _COLLECTIVE = 4, 5, 6, 7
"""NodeType"""
_COLLECTIVES = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}
"""CollectiveCommType"""
_INT32, _INT64, _UINT64, _BOOL, _STRING = 7, 9, 13, 27, 29
"""Fields of AttributeProto, by the type of the value."""


@dataclass(frozen=True, slots=True)
class _Node:
    number: int
    name: str
    kind: int
    start_ps: int
    duration_ps: int
    after_host: tuple[int, ...]
    after_data: tuple[int, ...]
    attributes: bytes
    inputs: bytes = b""


def write_chakra(
    view: RankView, groups: Mapping[tuple[int, ...], str], world_size: int, out: BinaryIO
) -> None:
    """Write what a rank did.

    Nodes are its host's steps, its kernels and copies (COMP_NODE), and its part in each transfer
    and collective. Control dependencies are those on the host, data dependencies those on commands:
    what a stream did before, and what the log says that each waited for.

    Raises:
        UsageError: Chakra has no such collective.
    """
    about = (("rank", view.rank), ("world_size", world_size))
    attributes = [message(2, text(1, name) + integer(_INT64, value)) for name, value in about]
    _write(out, text(1, _VERSION) + b"".join(attributes))
    for node in sorted(_Graph(view, groups).nodes(), key=lambda item: (item.start_ps, item.number)):
        _write(out, _encoded(node))


def _write(out: BinaryIO, value: bytes) -> None:
    out.write(varint(len(value)) + value)


def _encoded(node: _Node) -> bytes:
    # Readers take whole microseconds; the exact time is an attribute.
    start_us, duration_us = (
        (ps + 500_000) // 1_000_000 for ps in (node.start_ps, node.duration_ps)
    )
    after = ((4, node.after_host), (5, node.after_data))
    return (
        integer(1, node.number) + text(2, node.name) + integer(3, node.kind)
        + b"".join(message(number, b"".join(map(varint, ids))) for number, ids in after if ids)
        + integer(6, start_us) + integer(7, duration_us)
        + (message(8, node.inputs) if node.inputs else b"")
        + node.attributes + _number("duration_ps", _UINT64, node.duration_ps)
    )  # fmt: skip


def _number(name: str, kind: int, value: int) -> bytes:
    return message(10, text(1, name) + integer(kind, value))


def _text(name: str, value: str) -> bytes:
    return message(10, text(1, name) + text(_STRING, value))


@dataclass(slots=True)
class _HostTimes:
    """When a host's nodes ended, by time."""

    ends: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def last(self, time_ps: int) -> tuple[int, ...]:
        """Return the last node that had ended at a time, if any."""
        position = bisect_right(self.ends, time_ps)
        return (self.numbers[position - 1],) if position else ()

    def add(self, end_ps: int, number: int) -> None:
        position = bisect_right(self.ends, end_ps)
        self.ends.insert(position, end_ps)
        self.numbers.insert(position, number)


class _Graph:
    def __init__(self, view: RankView, groups: Mapping[tuple[int, ...], str]) -> None:
        self._view = view
        self._groups = groups
        self._host = _HostTimes()
        self._commands: dict[int, int] = {}
        """The nodes of commands, by launch id."""
        self._launched: dict[int, int] = {}
        """The nodes of launches, by what they launched."""
        self._last = 0

    def _new(self) -> int:
        self._last += 1
        return self._last - 1

    def nodes(self) -> Iterator[_Node]:
        steps = sorted(self._view.steps, key=lambda item: (item.start_ps, item.end_ps))
        commands = self._view.commands
        for rank_command in commands:
            self._commands[rank_command.instance.launch_id] = self._new()
        for step in steps:
            yield from self._step(step)
        streams: dict[tuple[int, str], RankCommand] = {}
        for command in commands:
            key = (command.sip, command.instance.stream)
            yield self._command(command, streams.get(key))
            streams[key] = command

    def _step(self, step: HostStep) -> Iterator[_Node]:
        start_ps = step.start_ps
        before = self._host.last(start_ps)
        idle_ps = start_ps - (self._host.ends[-1] if self._host.ends else 0)
        if idle_ps > 0:
            # Time that no span names; a replay needs it all the same.
            number = self._new()
            yield self._of_host(number, "host", start_ps - idle_ps, idle_ps, before, ())
            self._host.add(start_ps, number)
            before = (number,)
        awaited: tuple[int, ...] = ()
        if step.awaited is not None:
            start_ps = min(max(start_ps, step.awaited.end_ps), step.end_ps)
            awaited = (self._commands[step.awaited.instance.launch_id],)
        number = self._new()
        name = f"{step.span.kind} {step.span.label}".strip()
        yield self._of_host(number, name, start_ps, step.end_ps - start_ps, before, awaited)
        self._host.add(step.end_ps, number)
        for rank_command in step.launched:
            self._launched[rank_command.instance.launch_id] = number

    def _of_host(
        self,
        number: int,
        name: str,
        start_ps: int,
        duration_ps: int,
        before: tuple[int, ...],
        awaited: tuple[int, ...],
    ) -> _Node:
        attributes = _number("is_cpu_op", _BOOL, 1)
        return _Node(number, name, _COMP, start_ps, duration_ps, before, awaited, attributes)

    def _command(self, command: RankCommand, before: RankCommand | None) -> _Node:
        instance, template = command.instance, command.template
        number = self._commands[instance.launch_id]
        launched = self._launched.get(instance.launch_id)
        host = self._host.last(command.start_ps) if launched is None else (launched,)
        after = []
        if before is not None and before.end_ps <= command.start_ps:
            after.append(before.instance.launch_id)
        if command.after in self._commands and command.after not in after:
            after.append(command.after)
        begun_ps = command.begun_ps
        kind, attributes = self._attributes(command)
        inputs = b""
        if "shapes" in template.launched_with:
            shapes, types = (
                json.dumps(template.launched_with[name]) for name in ("shapes", "dtypes")
            )
            inputs = text(2, shapes) + text(3, types)
        data = tuple([self._commands[number] for number in after])
        duration_ps = command.end_ps - begun_ps
        return _Node(
            number, template.name, kind, begun_ps, duration_ps, host, data, attributes, inputs
        )

    def _attributes(self, command: RankCommand) -> tuple[int, bytes]:
        instance, template = command.instance, command.template
        on_device = _number("is_cpu_op", _BOOL, 0) + _text("stream", instance.stream)
        if template.kind != "collective":
            done = _number("num_ops", _INT64, template.flops)
            moved = _number("tensor_size", _UINT64, template.hbm_bytes)
            return _COMP, on_device + done + moved
        group = _text("pg_name", self._groups[tuple(sorted(instance.ranks))])
        number, _ = bytes_of(template.name, template.message_bytes, len(instance.ranks))
        on_device += group + _number("comm_size", _INT64, number)
        root = template.launched_with.get("root", 0)
        if template.name == "send_recv":
            source, target = instance.ranks[root], instance.ranks[1 - root]
            ends = _number("comm_src", _INT32, source) + _number("comm_dst", _INT32, target)
            tag = _number("comm_tag", _INT32, instance.launch_id)
            return (_SEND if command.position == root else _RECV), on_device + ends + tag
        if template.name not in _COLLECTIVES:
            raise UsageError(
                f"Chakra has no {template.name} (launch {instance.launch_id}); write another format"
            )
        kind = _number("comm_type", _INT64, _COLLECTIVES[template.name])
        return _COLLECTIVE, on_device + kind + _number("root", _INT32, instance.ranks[root])
