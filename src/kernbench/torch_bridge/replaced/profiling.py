"""``torch.profiler`` in simulated time, from the calling rank's entries in the op log."""

from __future__ import annotations

import json
from typing import Any

import torch.autograd.profiler as autograd_profiler
import torch.profiler.profiler as torch_profiler
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import ProfilerActivity

from kernbench.outputs import as_text, name_of, whole_file
from kernbench.report import HostStep, RankView, process_groups, rank_views, write_kineto
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device import streams
from kernbench.torch_bridge.placement.names import device_at
from kernbench.torch_bridge.processes.process import Process, current

_PS_PER_US = 1e6


class SimulatedProfile:
    """Replaces ``torch.autograd.profiler.profile``, on which ``torch.profiler`` is built.

    Every launch is a host event with the command that it launched, and every command a device
    event. Stacks and memory are not recorded; shapes are, in traces.
    """

    kineto_results = None
    trace_id = ""

    def __init__(self, enabled: bool = True, *, use_cpu: bool = True, **options: Any) -> None:
        self.enabled = enabled
        self._use_cpu = use_cpu
        self._use_device = options.get("use_device") or (options.get("use_cuda") and "cuda") or None
        self._with_flops = bool(options.get("with_flops"))
        self._accumulates = bool(options.get("acc_events"))
        self._start = (0, 0)
        self._events: list[FunctionEvent] = []
        self._parts: list[RankView] = []
        self.metadata: dict[str, Any] = {}
        """What the program adds to its traces."""
        self._tree: EventList | None = None
        self._stats = autograd_profiler._ProfilerStats()

    def __enter__(self) -> SimulatedProfile:
        if self.enabled:
            self._start_trace()
        return self

    def __exit__(self, *error: object) -> None:
        if self.enabled:
            self._stop()

    def _start_trace(self) -> None:
        process = current()
        self._start = (len(process.session.run.op_log.host_spans), len(process.ranges.ended))
        if not self._accumulates:
            self._events, self._parts = [], []

    def _stop(self) -> None:
        streams.synchronize()
        self._tree = None
        part = _part(current(), *self._start)
        self._parts.append(part)
        if self._use_cpu:
            for host_range in part.ranges:
                self._add(
                    host_range.name,
                    host_range.start_ps,
                    host_range.end_ps,
                    0,
                    is_user_annotation=True,
                )
        for step in part.steps:
            if step.span.kind == "launch":
                self._add_launch(step)
        if self._use_cpu:
            for step in part.steps:
                if step.span.kind == "wait":
                    self._add(f"wait for {step.span.label}", step.start_ps, step.end_ps, 0)

    def _add_launch(self, step: HostStep) -> None:
        result = None
        if self._use_cpu:
            name = step.span.label.replace("aten.", "aten::", 1)
            flops = sum(command.template.flops for command in step.launched)
            result = self._add(name, step.start_ps, step.end_ps, 0, flops=flops)
        for command in step.launched if self._use_device else ():
            name, sip_id = command.template.name, command.sip
            place = {"device_type": DeviceType.CUDA, "device_index": device_at(sip_id).index}
            if result is not None:
                result.append_kernel(name, sip_id, (command.end_ps - command.start_ps) / _PS_PER_US)
            self._add(name, command.start_ps, command.end_ps, 1, **place)

    def _add(
        self, name: str, start_ps: int, end_ps: int, thread: int, **more: Any
    ) -> FunctionEvent:
        value: Any = FunctionEvent(
            len(self._events),
            name,
            thread,
            start_ps / _PS_PER_US,
            end_ps / _PS_PER_US,
            use_device=self._use_device,
            stack=[],
            trace_name=name,
            **more,
        )
        self._events.append(value)
        return value

    @property
    def function_events(self) -> EventList:
        if self._tree is None:
            self._tree = EventList(
                self._events, use_device=self._use_device, with_flops=self._with_flops
            )
            self._tree._build_tree()
        return self._tree

    def table(self, *args: Any, **kwargs: Any) -> str:
        return str(self.function_events.table(*args, **kwargs))

    def key_averages(self, *args: Any) -> EventList:
        return self.function_events.key_averages(*args)

    def total_average(self) -> Any:
        return self.function_events.total_average()

    @property
    def self_cpu_time_total(self) -> Any:
        return self.function_events.self_cpu_time_total

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        process = current()
        run = process.session.run
        view = RankView(process.rank)
        for part in self._parts:
            view.steps += part.steps if self._use_cpu else []
            view.ranges += part.ranges if self._use_cpu else []
            view.commands += part.commands if self._use_device else []
        groups = process_groups(run.op_log)
        with whole_file(path) as file, as_text(file) as text:
            write_kineto(view, run.machine, groups, run.world_size, text, metadata=self.metadata)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        with whole_file(path) as file:
            self.function_events.export_stacks(name_of(file), metric)

    def toggle_collection_dynamic(self, enabled: bool, activities: Any) -> None:
        """Accept it: everything is recorded in any case."""


def _part(process: Process, first_span: int, first_range: int) -> RankView:
    """Return what a rank did from a span of the log and a range of its own on."""
    log, rank = process.session.run.op_log, process.rank
    before = sum(span.rank == rank for span in log.host_spans[:first_span])
    steps = [step for view in rank_views(log, [rank]) for step in view.steps[before:]]
    commands = [rank_command for step in steps for rank_command in step.launched]
    commands.sort(key=lambda rank_command: rank_command.start_ps)
    return RankView(rank, steps, commands, process.ranges.ended[first_range:])


def _prepare(self: Any) -> None:
    """``torch.profiler``'s own preparation, without Kineto."""
    if self.profiler is None or not self.acc_events:
        self.profiler = SimulatedProfile(
            use_cpu=ProfilerActivity.CPU in self.activities,
            use_device=self.use_device,
            with_flops=self.with_flops,
            acc_events=self.acc_events,
        )


def _add_metadata(self: Any, key: str, value: str) -> None:
    if self.profiler is not None:
        self.profiler.metadata[key] = value


def _add_metadata_json(self: Any, key: str, value: str) -> None:
    if self.profiler is not None:
        self.profiler.metadata[key] = json.loads(value)


def install(patches: Patches) -> None:
    """Let programs profile themselves."""
    patches.set(autograd_profiler, "profile", SimulatedProfile)
    patches.set_all(
        torch_profiler._KinetoProfile,
        prepare_trace=_prepare,
        start_trace=lambda self: self.profiler._start_trace(),
        add_metadata_json=_add_metadata_json,
        add_metadata=_add_metadata,
    )
    patches.set(
        torch_profiler,
        "supported_activities",
        lambda: {ProfilerActivity.CPU, ProfilerActivity.CUDA},
    )
