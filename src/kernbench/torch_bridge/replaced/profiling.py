"""``torch.profiler`` in simulated time, from the calling rank's entries in the op log."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any

import torch.autograd.profiler as autograd_profiler
import torch.profiler.profiler as torch_profiler
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import ProfilerActivity

from kernbench.op_log import HostSpan, Instance
from kernbench.outputs import name_of, whole_file
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device import streams
from kernbench.torch_bridge.placement.names import device_at
from kernbench.torch_bridge.processes.process import Process, current

_PS_PER_US = 1e6


class SimulatedProfile:
    """Replaces ``torch.autograd.profiler.profile``, on which ``torch.profiler`` is built.

    Every launch is a host event with the command that it launched, and every command a device
    event. Stacks, shapes and memory are not recorded.
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
        self._start = (
            len(process.session.run.op_log.host_spans),
            len(process.ranges.ended),
        )
        if not self._accumulates:
            self._events = []

    def _stop(self) -> None:
        streams.synchronize()
        self._tree = None
        process = current()
        first_span, first_range = self._start
        if self._use_cpu:
            for each in process.ranges.ended[first_range:]:
                self._add(each.name, each.start_ps, each.end_ps, 0, is_user_annotation=True)
        log = process.session.run.op_log
        launched = _launched(process)
        for span, instances in launched[
            bisect_left([position for position, _ in launched], first_span) :
        ]:
            self._add_launch(process, log.host_spans[span], instances)
        if self._use_cpu:
            for waited in log.host_spans[first_span:]:
                if waited.rank == process.rank and waited.kind == "wait":
                    self._add(f"wait for {waited.label}", waited.start_ps, waited.end_ps, 0)

    def _add_launch(self, process: Process, span: HostSpan, instances: list[Instance]) -> None:
        made = None
        if self._use_cpu:
            name = span.label.replace("aten.", "aten::", 1)
            flops = sum(each.template.flops for each in instances)
            made = self._add(name, span.start_ps, span.end_ps, 0, flops=flops)
        for instance in instances if self._use_device else ():
            at, name = instance.ranks.index(process.rank), instance.template.name
            start_ps, end_ps = instance.starts_ps[at], instance.ends_ps[at]
            index = device_at(instance.sips[at]).index
            place = {"device_type": DeviceType.CUDA, "device_index": index}
            if made is not None:
                made.append_kernel(name, instance.sips[at], (end_ps - start_ps) / _PS_PER_US)
            self._add(name, start_ps, end_ps, 1, **place)

    def _add(
        self, name: str, start_ps: int, end_ps: int, thread: int, **more: Any
    ) -> FunctionEvent:
        made: Any = FunctionEvent(
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
        self._events.append(made)
        return made

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
        with whole_file(path) as file:
            self.function_events.export_chrome_trace(name_of(file))

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        with whole_file(path) as file:
            self.function_events.export_stacks(name_of(file), metric)

    def toggle_collection_dynamic(self, enabled: bool, activities: Any) -> None:
        """Accept it: everything is recorded in any case."""


def _launched(process: Process) -> list[tuple[int, list[Instance]]]:
    """Return positions of a rank's launches among the host's spans, with the launched commands.

    The k-th launch of a name by a rank is the k-th of its commands of that name.
    """
    log = process.session.run.op_log
    commands: dict[str, deque[Instance]] = {}
    for instance in log.instances:
        if process.rank in instance.ranks:
            commands.setdefault(instance.template.name, deque()).append(instance)
    found: list[tuple[int, list[Instance]]] = []
    for position, span in enumerate(log.host_spans):
        if span.rank == process.rank and span.kind == "launch":
            names = log.graphs.get(span.label, (span.label,))
            waiting = (commands.get(name) for name in names)
            found.append((position, [each.popleft() for each in waiting if each]))
    return found


def _prepare(self: Any) -> None:
    """``torch.profiler``'s own preparation, without Kineto."""
    if self.profiler is None or not self.acc_events:
        self.profiler = SimulatedProfile(
            use_cpu=ProfilerActivity.CPU in self.activities,
            use_device=self.use_device,
            with_flops=self.with_flops,
            acc_events=self.acc_events,
        )


def install(patches: Patches) -> None:
    """Let programs profile themselves."""
    patches.set(autograd_profiler, "profile", SimulatedProfile)
    patches.set_all(
        torch_profiler._KinetoProfile,
        {
            "prepare_trace": _prepare,
            "start_trace": lambda self: self.profiler._start_trace(),
            "add_metadata_json": lambda self, key, value: None,
            "add_metadata": lambda self, key, value: None,
        },
    )
    patches.set(
        torch_profiler,
        "supported_activities",
        lambda: {ProfilerActivity.CPU, ProfilerActivity.CUDA},
    )
