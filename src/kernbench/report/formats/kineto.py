"""What one rank did as PyTorch's profiler writes it, for what reads its traces.

Source: the files of PyTorch's ``export_chrome_trace`` (Kineto), as Holistic Trace Analysis, the
profiler's plug-in for TensorBoard and ui.perfetto.dev read them: categories ``cpu_op``,
``cuda_runtime``, ``kernel``, ``gpu_memcpy``, ``gpu_memset``, ``user_annotation``; a launch and its
kernel have one ``correlation``. Times are microseconds with three decimals.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from kernbench.hardware import Machine
from kernbench.op_log import HostRange
from kernbench.report.formats.events import microseconds
from kernbench.report.formats.nesting import nested_tracks
from kernbench.report.formats.rank_view import HostStep, RankCommand, RankView, bytes_of

_HOST = 100_000
"""Added to a rank's number, its process; devices are processes by their own numbers."""
_SIDE = 1_000
"""Added to the number of a stream's thread for what overlaps others there: pairs of a batch."""
_MARK_PS = 1_000
"""How long calls take that the log does not have, but readers look for: as little as they see."""
_FIRST_CORRELATION = 1_000_000
"""Readers that keep these numbers in as few bits as they need put positions of events there."""
_MEMORY = {
    "copy_from_host": "Memcpy HtoD (Pageable -> Device)",
    "copy_to_host": "Memcpy DtoH (Device -> Pageable)",
    "copy": "Memcpy DtoD (Device -> Device)",
    "fill": "Memset (Device)",
}
_CALLS = {"copy": "cudaMemcpyAsync", "fill": "cudaMemsetAsync"}
_COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
}
"""How PyTorch names collectives that it calls otherwise than kernbench."""
_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long int",
    "int32": "int",
    "int16": "short int",
    "int8": "signed char",
    "uint8": "unsigned char",
}
"""How PyTorch's profiler names dtypes."""
_Groups = Mapping[tuple[int, ...], str]
_Event = dict[str, Any]


def write_kineto(
    view: RankView,
    machine: Machine,
    groups: _Groups,
    world_size: int,
    out: TextIO,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write what a rank did.

    ``groups`` are the names of process groups, by their ranks. Where the log has something that
    PyTorch's profiler does not write, there is an argument more: ``bytes`` of a collective,
    ``launch``, the number in the op log.
    """
    head = {
        **(metadata or {}),
        "schemaVersion": 1,
        "deviceProperties": [_device(machine, sip) for sip in sorted(_sips(view))],
        "distributedInfo": _distributed(view.rank, groups, world_size),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
    }
    # Readers look for `"rank": 3` with the space, and stop at the line that has it.
    lines = (f'"{key}": {json.dumps(value)},\n' for key, value in head.items())
    out.write("{" + "".join(lines) + '"traceEvents": [\n')
    separator = ""
    for event in _ProfileWriter(view, machine, groups).events():
        times = {
            "ts": microseconds(event.pop("start_ps")),
            "dur": microseconds(event.pop("duration_ps")) if "duration_ps" in event else None,
        }
        shown = "".join(f', "{key}": {time}' for key, time in times.items() if time is not None)
        out.write(f"{separator}{json.dumps(event)[:-1]}{shown}}}")
        separator = ",\n"
    out.write(f'\n], "traceName": "rank{view.rank}"}}\n')


def _sips(view: RankView) -> set[int]:
    return {sip for sip, _ in _streams(view)}


def _streams(view: RankView) -> list[tuple[int, str]]:
    """Return the streams that a rank used, or waited for though what it waits for is not shown."""
    awaited = (step.awaited for step in view.steps if step.awaited is not None)
    return sorted({(item.sip, item.instance.stream) for item in (*view.commands, *awaited)})


def _device(machine: Machine, sip_id: int) -> dict[str, Any]:
    sip = machine.sip_at(sip_id)
    return {
        "id": sip_id,
        "name": machine.name,
        "totalGlobalMem": sip.hbm_bytes,
        "numSms": sip.num_pes,
        "warpSize": _lanes(machine, sip_id),
    }


def _lanes(machine: Machine, sip_id: int) -> int:
    warps = machine.sip_at(sip_id).pe.warps
    return 32 if warps is None else warps.lanes


def _distributed(rank: int, groups: _Groups, world_size: int) -> dict[str, Any]:
    mine = {ranks: name for ranks, name in groups.items() if rank in ranks}
    return {
        "backend": "nccl",
        "rank": rank,
        "world_size": world_size,
        "pg_count": len(mine),
        "pg_config": [
            {
                "pg_name": name,
                "pg_desc": _description(name),
                "backend_config": "cuda:nccl",
                "ranks": list(ranks),
                "pg_size": len(ranks),
            }
            for ranks, name in mine.items()
        ],
    }


def _description(name: str) -> str:
    return "default_pg" if name == "0" else f"group_{name}"


def _times(start_ps: int, end_ps: int) -> dict[str, int]:
    # Rounded down at both ends: what does not overlap in picoseconds does not in nanoseconds.
    return {"start_ps": start_ps, "duration_ps": (end_ps // 1000 - start_ps // 1000) * 1000}


class _ProfileWriter:
    def __init__(self, view: RankView, machine: Machine, groups: _Groups) -> None:
        self._view = view
        self._machine = machine
        self._groups = groups
        self._pid = _HOST + view.rank
        # Readers take stream 0 for none.
        self._streams = {name: 7 + number for number, name in enumerate(_streams(view))}
        self._launched_by: dict[int, HostStep] = {}
        self._numbers: dict[int, int] = {}
        """The correlation of what launched a command, by its launch id."""
        for step in view.steps:
            for rank_command in step.launched:
                self._launched_by[rank_command.instance.launch_id] = step
        self._last = _FIRST_CORRELATION
        self._records: dict[int, int] = {}
        """The correlation of the record of an event, by what was launched before it."""

    def _new(self) -> int:
        self._last += 1
        return self._last

    def events(self) -> Iterator[_Event]:
        yield from self._names()
        for step in self._view.steps:
            if step.launched:
                number = self._new()
                for command in step.launched:
                    self._numbers[command.instance.launch_id] = number
        self._waits = dict(self._stream_waits())
        items: list[HostRange | HostStep] = [*self._view.ranges]
        items += [step for step in self._view.steps if step.span.kind != "python"]
        for tid, track in enumerate(nested_tracks(items), self._pid):
            for item in track:
                if isinstance(item, HostRange):
                    yield self._cpu("user_annotation", item.name, item, tid, {})
                else:
                    yield from self._step(item, tid)
        for stream, commands in self._by_stream().items():
            for number, side in enumerate(nested_tracks(commands)):
                for command in side:
                    yield from self._command(command, stream + _SIDE * number)
        yield from self._device_ranges()

    def _by_stream(self) -> dict[int, list[RankCommand]]:
        stream: dict[int, list[RankCommand]] = {}
        for command in self._view.commands:
            stream.setdefault(self._stream(command), []).append(command)
        return stream

    def _names(self) -> Iterator[_Event]:
        groups = [(self._pid, f"rank {self._view.rank}", "CPU", self._view.rank)]
        groups += [
            (sip, f"{self._machine.name} {sip}", f"GPU {sip}", 5_000_000 + sip)
            for sip in sorted(_sips(self._view))
        ]
        for pid, name, label, order in groups:
            for what, args in (
                ("process_name", {"name": name}),
                ("process_labels", {"labels": label}),
                ("process_sort_index", {"sort_index": order}),
            ):
                yield {"name": what, "ph": "M", "start_ps": 0, "pid": pid, "tid": 0, "args": args}
        for (sip, name), number in self._streams.items():
            args = {"name": f"stream {number} {name}"}
            meta = {"name": "thread_name", "ph": "M", "start_ps": 0, "args": args}
            yield {**meta, "pid": sip, "tid": number}

    def _cpu(
        self, kind: str, name: str, item: HostRange | HostStep, tid: int, args: Mapping[str, Any]
    ) -> _Event:
        return self._call(kind, name, (item.start_ps, item.end_ps), tid, args)

    def _call(
        self, kind: str, name: str, times: tuple[int, int], tid: int, args: Mapping[str, Any]
    ) -> _Event:
        return {
            "ph": "X", "cat": kind, "name": name, "pid": self._pid, "tid": tid,
            **_times(*times), "args": dict(args),
        }  # fmt: skip

    def _step(self, step: HostStep, tid: int) -> Iterator[_Event]:
        span = step.span
        if span.kind == "allocate":
            yield self._cpu("cuda_runtime", "cudaMalloc", step, tid, {"correlation": self._new()})
        elif step.awaited is not None:
            yield from self._wait(step, step.awaited, tid)
        elif step.launched:
            yield from self._launch(step, tid)
        else:
            yield self._cpu("cpu_op", _operation(span.label or span.kind), step, tid, {})

    def _launch(self, step: HostStep, tid: int) -> Iterator[_Event]:
        first = step.launched[0]
        number = self._numbers[first.instance.launch_id]
        values = first.template.launched_with
        args: dict[str, Any] = {"External id": number}
        if "shapes" in values:
            types = [_TYPES.get(item, item) for item in values["dtypes"]]
            args |= {"Input Dims": values["shapes"], "Input type": types}
        yield self._cpu("cpu_op", _operation(step.span.label), step, tid, args)
        start_ps = step.start_ps
        for rank_command in step.launched:
            wait = self._waits.get(rank_command.instance.launch_id)
            if wait is not None:
                times = (start_ps, min(start_ps + _MARK_PS, step.end_ps))
                start_ps = times[1]
                args = {"correlation": wait[0], "External id": number}
                yield self._call("cuda_runtime", "cudaStreamWaitEvent", times, tid, args)
                yield self._stream_wait(rank_command, *wait)
        call = _CALLS.get(first.template.kind, "cudaLaunchKernel")
        is_graph = len(step.launched) > 1
        runtime = {"External id": number, "correlation": number}
        times = (start_ps, step.end_ps)
        name = "cudaGraphLaunch" if is_graph else call
        yield self._call("cuda_runtime", name, times, tid, runtime)
        yield self._arrow("s", self._pid, tid, start_ps, number)
        for command in step.launched:
            record = self._records.get(command.instance.launch_id)
            if record is not None:
                at = (step.end_ps - _MARK_PS, step.end_ps)
                args = {"correlation": record}
                yield self._call("cuda_runtime", "cudaEventRecord", at, tid, args)

    def _arrow(self, phase: str, pid: int, tid: int, time_ps: int, number: int) -> _Event:
        arrow = {"ph": phase, "id": number, "pid": pid, "tid": tid, "start_ps": time_ps}
        more = {"bp": "e"} if phase == "f" else {}
        return {**arrow, "cat": "ac2g", "name": "ac2g", **more}

    def _wait(self, step: HostStep, awaited: RankCommand, tid: int) -> Iterator[_Event]:
        number = self._new()
        args = {"correlation": number, "waited for": step.span.label}
        yield self._cpu("cuda_runtime", "cudaStreamSynchronize", step, tid, args)
        # As short as it can be, since readers take it for work of the device.
        yield self._sync("Stream Sync", awaited, (awaited.end_ps, step.end_ps), number)

    def _stream_waits(self) -> Iterator[tuple[int, tuple[int, int, RankCommand]]]:
        """Yield what was launched to wait for another stream of its rank.

        By its launch id: the correlations of the wait and of the record, and what it waits for.
        """
        by_launch = {command.instance.launch_id: command for command in self._view.commands}
        for command in self._view.commands:
            before = by_launch.get(command.after)
            if before is None or self._stream(before) == self._stream(command):
                continue
            number, mine = before.instance.launch_id, command.instance.launch_id
            if number in self._launched_by and mine in self._launched_by:
                record = self._records.setdefault(number, self._new())
                yield mine, (self._new(), record, before)

    def _stream_wait(
        self, command: RankCommand, number: int, record: int, before: RankCommand
    ) -> _Event:
        more = {"wait_on_stream": self._stream(before), "wait_on_cuda_event_record_corr_id": record}
        times = (command.start_ps, command.start_ps)
        return self._sync("Stream Wait Event", command, times, number, more)

    def _sync(
        self,
        name: str,
        command: RankCommand,
        times: tuple[int, int],
        number: int,
        more: Mapping[str, int] | None = None,
    ) -> _Event:
        stream = self._stream(command)
        args = {"device": command.sip, "context": 1, "stream": stream, "correlation": number}
        return {
            "ph": "X", "cat": "cuda_sync", "name": name, "pid": command.sip, "tid": stream,
            **_times(min(times), times[1]), "args": {**args, **(more or {})},
        }  # fmt: skip

    def _stream(self, command: RankCommand) -> int:
        return self._streams[command.sip, command.instance.stream]

    def _command(self, command: RankCommand, tid: int) -> Iterator[_Event]:
        template, stream = command.template, self._stream(command)
        number = self._numbers.get(command.instance.launch_id)
        args: dict[str, Any] = {
            "device": command.sip,
            "context": 1,
            "stream": stream,
            "launch": command.instance.launch_id,
        }
        if number is not None:
            args |= {"External id": number, "correlation": number}
        kind, name = "kernel", template.name
        if template.kind == "collective":
            name, more = self._collective(command)
        elif template.kind == "kernel":
            more = self._kernel(command)
        else:
            kind = "gpu_memset" if template.kind == "fill" else "gpu_memcpy"
            name, more = _memory(command)
        yield {
            "ph": "X", "cat": kind, "name": name, "pid": command.sip, "tid": tid,
            **_times(command.start_ps, command.end_ps), "args": {**args, **more},
        }  # fmt: skip
        if number is not None:
            yield self._arrow("f", command.sip, tid, command.start_ps, number)

    def _kernel(self, command: RankCommand) -> dict[str, Any]:
        template = command.template
        values = template.launched_with
        more: dict[str, Any] = {"queued": 0, "flops": template.flops, "bytes": template.hbm_bytes}
        if "grid" in values:
            threads = values["num_warps"] * _lanes(self._machine, command.sip)
            more |= {"grid": values["grid"], "block": [threads, 1, 1]}
        if "arguments" in values:
            more["arguments"] = values["arguments"]
        return more

    def _collective(self, command: RankCommand) -> tuple[str, dict[str, Any]]:
        template, ranks = command.template, command.instance.ranks
        op = template.name
        camel = "".join(part.capitalize() for part in op.split("_"))
        how = template.algorithm.upper().replace("/", "_").replace(" ", "_")
        called = _COLLECTIVES.get(op, op)
        if op == "send_recv":
            camel, called = (
                "SendRecv",
                ("send", "recv")[command.position != template.launched_with.get("root", 0)],
            )
        group = tuple(sorted(ranks))
        name = self._groups[group]
        more: dict[str, Any] = {
            "Collective name": called,
            "Group size": len(ranks),
            "Process Group Name": name,
            "Process Group Description": _description(name),
            "Process Group Ranks": json.dumps(group),
            "bytes": template.message_bytes,
        }
        if "itemsize" in template.launched_with:
            taken, number = bytes_of(op, template.message_bytes, len(ranks))
            itemsize = template.launched_with["itemsize"]
            more |= {"In msg nelems": taken // itemsize, "Out msg nelems": number // itemsize}
        return f"ncclDevKernel_{camel}_{how}", more

    def _device_ranges(self) -> Iterator[_Event]:
        """Yield, for each range of the host, when each stream ran what it launched."""
        launches = [step for step in self._view.steps if step.launched]
        launches.sort(key=lambda it: it.start_ps)
        starts = [launch.start_ps for launch in launches]
        for item in self._view.ranges:
            spans: dict[tuple[int, int], tuple[int, int]] = {}
            inside = launches[bisect_left(starts, item.start_ps) : bisect_left(starts, item.end_ps)]
            for rank_command in (command for step in inside for command in step.launched):
                key = (rank_command.sip, self._stream(rank_command))
                first, last = spans.get(key, (rank_command.start_ps, rank_command.end_ps))
                spans[key] = (min(first, rank_command.start_ps), max(last, rank_command.end_ps))
            for (sip, stream), times in spans.items():
                yield {
                    "ph": "X", "cat": "gpu_user_annotation", "name": item.name, "pid": sip,
                    "tid": stream, **_times(*times), "args": {},
                }  # fmt: skip


def _operation(label: str) -> str:
    """Return how PyTorch names an operation: ``aten::mm``."""
    return label.replace("aten.", "aten::", 1) if label.startswith("aten.") else label


def _memory(command: RankCommand) -> tuple[str, dict[str, Any]]:
    template = command.template
    # A copy inside of HBM moves each byte twice.
    size = template.hbm_bytes // (2 if template.name == "copy" else 1)
    duration_ns = (command.end_ps - command.start_ps) / 1000
    rate = {"memory bandwidth (GB/s)": size / duration_ns} if duration_ns else {}
    return _MEMORY.get(template.name, template.name), {"bytes": size, **rate}
