"""``torch.cuda.Stream`` and ``Event`` in simulated time."""

from __future__ import annotations

from typing import Any

import torch
import torch.cuda._gpu_trace as trace

from kernbench.clock import Handle
from kernbench.clock import Stream as Queue
from kernbench.errors import UsageError
from kernbench.runtime_api import DeviceStream, Marker, WaitFor
from kernbench.torch_bridge.base.arguments import checked
from kernbench.torch_bridge.base.refusals import CaptureError
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, device_at, is_simulated, sip_of
from kernbench.torch_bridge.processes.gpu_trace import fire, host_waits
from kernbench.torch_bridge.processes.process import current

_PS_PER_MS = 1e9
_DEFAULT_HANDLES = (0, 1, 2)
"""CUDA's handles of the legacy default stream and of the per-thread one."""


class Stream:
    """An in-order queue of a device; all streams of a device share its PEs."""

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        queue: DeviceStream | None = None,
        **ignored: Any,
    ) -> None:
        if not isinstance(priority, int):
            raise TypeError(
                f"Stream(): argument 'priority' must be int, not {type(priority).__name__}"
            )
        run = current().session.run
        sip_id = sip_of(DEVICE_TYPE if device is None else device)
        self.queue = run.new_stream(sip_id) if queue is None else queue
        if queue is None:
            fire(trace.StreamCreationCallbacks, self.cuda_stream)
        self.priority = priority
        self._before: list[Stream] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and own_queue(other.queue) is own_queue(self.queue)

    def __hash__(self) -> int:
        return hash(own_queue(self.queue))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} {self.queue.queue.name}>"

    @property
    def device(self) -> torch.device:
        return device_at(self.queue.sip_id)

    @property
    def device_index(self) -> int:
        index: int = self.device.index
        return index

    @property
    def cuda_stream(self) -> int:
        return id(own_queue(self.queue))

    stream_id = cuda_stream
    device_type = 1
    """PyTorch's number for CUDA."""

    @checked
    def wait_event(self, event: Event) -> None:
        """Let later work on the stream wait for an event; the host continues."""
        event.wait(self)

    @checked
    def wait_stream(self, stream: Stream) -> None:
        """Let later work on the stream wait for all that is enqueued on another stream so far."""
        stream.record_event().wait(self)

    @checked
    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that happens after all that is enqueued on the stream so far."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Block the host until everything on the stream has ended."""
        if self.is_capturing():
            refuse_in_capture("torch.cuda.Stream.synchronize")
        wait_for_queue(self.queue.queue.tail)
        self._has_ended()

    def query(self) -> bool:
        """Return whether everything on the stream has ended at the host's time."""
        if self.is_capturing():
            refuse_in_capture("torch.cuda.Stream.query")
        current().host.poll()
        tail = self.queue.queue.tail
        has_ended = tail is None or tail.done
        if has_ended:
            self._has_ended()
        return has_ended

    def _has_ended(self) -> None:
        """Note that the program has seen the end of what is on it."""
        order = current().order
        host_waits(self.queue.queue)
        if order is not None:
            order.host_waits_for(self.queue.queue)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority, which PyTorch has, whatever the device."""
        return 0, -3

    def is_capturing(self) -> bool:
        """Return whether work enqueued on it is captured for a graph."""
        return own_queue(self.queue) is not self.queue.queue

    def __enter__(self) -> Stream:
        self._before.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *error: object) -> None:
        set_stream(self._before.pop())


class Event:
    """A point in a stream. Simulated time is always known, so timing is always enabled."""

    def __init__(self, *args: Any, enable_timing: bool = False, **kwargs: Any) -> None:
        self.is_timed = bool(args[0]) if args and isinstance(args[0], bool) else enable_timing
        """Whether it has a time stamp, which takes time of its stream."""
        self._marker: Marker | None = None
        self._is_captured = False
        """Whether it is part of a captured graph, and happens only in replays."""
        self._point: Any = None
        """What it stands for, where the order of operations is checked."""

    @checked
    def record(self, stream: Stream | None = None) -> Event:
        """Record the point after all that is enqueued on a stream (default: the current one)."""
        process = current()
        run = process.session.run
        queue = (current_stream() if stream is None else stream).queue
        stamp_ps = run.machine.sip_at(queue.sip_id).event_ps if self.is_timed else 0
        self._marker = Marker(run, stamp_ps)
        self._is_captured = own_queue(queue) is not queue.queue
        if self.is_timed:
            process.host.owe_for("event_ps")
        process.host.enqueue(self._marker, queue.queue)
        if process.order is not None and not self._is_captured:
            self._point = process.order.point(queue.queue)
        fire(trace.EventRecordCallbacks, id(self), id(own_queue(queue)))
        return self

    @checked
    def wait(self, stream: Stream | None = None) -> None:
        """Let later work on a stream (default: the current one) wait for this."""
        process = current()
        order = process.order
        queue = (current_stream() if stream is None else stream).queue
        fire(trace.EventWaitCallbacks, id(self), id(own_queue(queue)))
        if order is not None and not self._is_captured and own_queue(queue) is queue.queue:
            order.stream_waits(queue.queue, self._point)
        if self._marker is not None and not self._marker.done:
            if process.capture is not None and process.capture.waits(queue, self._marker):
                return
            self._check("wait")
            process.host.enqueue(WaitFor(process.session.run, self._marker), queue.queue)
        elif self._marker is not None:
            process.host.passes(self._marker, queue.queue)

    def synchronize(self) -> None:
        """Block the host until it has happened."""
        self._check("synchronize")
        wait_for_queue(self._marker)
        self._has_ended()

    def query(self) -> bool:
        """Return whether it has happened at the host's time."""
        self._check("query")
        current().host.poll()
        has_ended = self._marker is None or self._marker.done
        if has_ended:
            self._has_ended()
        return has_ended

    def _has_ended(self) -> None:
        """Note that the program has seen that it has happened."""
        order = current().order
        fire(trace.EventSynchronizationCallbacks, id(self))
        if order is not None:
            order.host_waits(self._point)

    @checked
    def elapsed_time(self, end_event: Event) -> float:
        """Return the simulated milliseconds from this event to another.

        Raises:
            UsageError: One of them has not happened yet.
        """
        self._check("elapsed_time")
        end_event._check("elapsed_time")
        pair = (self, end_event)
        if not all(event._marker is not None and event._marker.done for event in pair):
            # Whoever reads what is known, however often, waits for nothing.
            current().host.poll()
        for which, event in zip(("the first", "the second"), pair, strict=True):
            if event._marker is None or not event._marker.done:
                raise UsageError(
                    f"elapsed_time: {which} event has not happened; record it and synchronize()"
                )
        assert self._marker is not None
        assert end_event._marker is not None
        keeper = current().session.run.keeper
        if keeper is not None:
            keeper.reads_times()
        return (end_event._marker.end_ps - self._marker.end_ps) / _PS_PER_MS

    def _check(self, what: str) -> None:
        if self._is_captured:
            refuse_in_capture(f"torch.cuda.Event.{what}")
            raise CaptureError(
                f"torch.cuda.Event.{what}: the event was recorded in the capture of a CUDA graph, "
                "and happens only inside of its replays; record one before or after replay()"
            )


class _OfAnyDevice(type):
    """Makes ``torch.Stream`` and ``torch.Event`` return those of the requested device."""

    simulated: type
    real: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (cls.simulated, cls.real))

    def __call__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if device is not None and not is_simulated(device):
            return cls.real(device, *args, **kwargs)
        return cls.simulated(device, *args, **kwargs)


OF_ANY_DEVICE: dict[str, Any] = {
    call.__name__: _OfAnyDevice(
        call.__name__,
        (),
        {"simulated": call, "real": getattr(torch, call.__name__), "__module__": "torch"},
    )
    for call in (Stream, Event)
}
"""``torch.Stream`` or ``torch.Event``, for programs that do not name a kind of accelerator."""


def own_queue(stream: DeviceStream) -> Queue:
    """Return a stream's own queue, even while a capture replaces it."""
    queue: Queue = getattr(stream.queue, "stands_for", stream.queue)
    return queue


def refuse_in_capture(what: str) -> None:
    """Refuse a call while the calling process captures a graph.

    Raises:
        CaptureError: A capture is under way.
    """
    capture = current().capture
    if capture is not None:
        capture.refuse(what)


def wait_for_queue(handle: Handle | None) -> None:
    """Block the host until a command has ended, if there is one."""
    host = current().host
    if handle is None:
        host.catch_up()
    else:
        host.wait(handle)


def current_stream(device: Any = None) -> Stream:
    """Return the stream that the calling thread's operations of a device go to."""
    process = current()
    run = process.session.run
    sip_id = sip_of(DEVICE_TYPE if device is None else device)
    queue = run.current_stream()
    if queue.sip_id != sip_id:
        queue = process.streams.get(sip_id) or run.default_stream(sip_id)
    return Stream(queue=queue)


def external_stream(cuda_stream: int, device: Any = None) -> Stream:
    """Return the stream with a handle of :attr:`Stream.cuda_stream`; 0, 1 and 2: the default one.

    Raises:
        UsageError: No stream of the device has such a handle.
    """
    run = current().session.run
    sip_id = sip_of(DEVICE_TYPE if device is None else device)
    if cuda_stream in _DEFAULT_HANDLES:
        return default_stream(device)
    for known in (current_stream(device), default_stream(device)):
        if known.cuda_stream == cuda_stream:
            return known
    for queue in run.devices.queues(sip_id):
        if id(queue) == cuda_stream:
            return Stream(queue=DeviceStream(run, sip_id, queue))
    raise UsageError(
        f"torch.cuda.ExternalStream: {cuda_stream} is no stream of {device_at(sip_id)} of "
        f"machine {run.machine.name}; make one with torch.cuda.Stream()"
    )


def default_stream(device: Any = None) -> Stream:
    """Return the default stream of a device."""
    sip_id = sip_of(DEVICE_TYPE if device is None else device)
    return Stream(queue=current().session.run.default_stream(sip_id))


@checked
def set_stream(stream: Stream | None) -> None:
    """Set the calling rank's current stream."""
    if stream is not None:
        process = current()
        state = process.state
        # The previous device keeps its current stream.
        process.streams[state.sip_id] = state.stream
        state.sip_id = sip_id = stream.queue.sip_id
        is_default = stream.queue.queue is process.session.run.devices.sip(sip_id).queue
        # The allocator tells streams apart, and has one name for the default one.
        state.stream = None if is_default else stream.queue


class StreamContext:
    """``torch.cuda.stream``: sets the current stream within a block; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._before: list[Stream] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            self._before.append(current_stream())
            # As PyTorch's: a program may have put its own in its place.
            torch.cuda.set_stream(self.stream)

    def __exit__(self, *error: object) -> None:
        if self._before:
            torch.cuda.set_stream(self._before.pop())


def synchronize(device: Any = None) -> None:
    """Block the host until all streams of a device (default: the current one) are idle."""
    refuse_in_capture("torch.cuda.synchronize")
    process = current()
    sip_id = sip_of(DEVICE_TYPE if device is None else device)
    process.host.catch_up()
    for work in [work for line, work in process.newest_works.items() if line[0] == sip_id]:
        work.wait_on_host()
    for queue in process.session.run.devices.queues(sip_id):
        if queue.tail is not None:
            process.host.wait(queue.tail)
        host_waits(queue)
        if process.order is not None:
            process.order.host_waits_for(queue)
