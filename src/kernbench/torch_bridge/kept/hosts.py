"""Hosts that let the keeper of their run note what they do, so that it can be done again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernbench.clock import Handle, Stream, StreamCommand
from kernbench.hardware import HostSpec
from kernbench.op_log import Template
from kernbench.runtime_api import Action, Keeper, Marker, Run, WaitFor
from kernbench.torch_bridge.base.host_times import HostPart, HostTimes
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.processes.bursts import Burst
from kernbench.torch_bridge.processes.eager_host import EagerHost
from kernbench.torch_bridge.processes.host import Host
from kernbench.torch_bridge.processes.python_calls import FRAMES_OF_FUNCTION, IN_THREAD

_TIME_BITS = 64
_COUNT_BITS = 24
Owed = tuple[tuple[str, int], ...]
"""Which times a host owes, and how often: names of :class:`HostTimes`, with a place in a tuple."""


class CountedTimes:
    """The times of a host as numbers that also count what they are sums of.

    The low bits of a sum are picoseconds. Above them each time has a counter of its own, so that
    a sum says how often each was added: the host itself need not know that it is observed.
    """

    def __init__(self, times: HostTimes) -> None:
        self._names = [name for name, _ in named_times(times)]
        numbers = (
            ps + (1 << (_TIME_BITS + _COUNT_BITS * place))
            for place, (_, ps) in enumerate(named_times(times))
        )
        for name, value in vars(times).items():
            if isinstance(value, tuple):
                setattr(self, name, tuple([next(numbers) for _ in value]))
            else:
                setattr(self, name, next(numbers))

    def counts(self, owed: int) -> Owed:
        """Return what a sum consists of."""
        pairs = []
        counters = owed >> _TIME_BITS
        for name in self._names:
            count = counters & ((1 << _COUNT_BITS) - 1)
            if count:
                pairs.append((name, count))
            counters >>= _COUNT_BITS
        return tuple(pairs)

    @staticmethod
    def ps(owed: int) -> int:
        """Return a sum in picoseconds."""
        return owed & ((1 << _TIME_BITS) - 1)


def named_times(times: HostTimes) -> Iterator[tuple[str, int]]:
    """Yield all times of a host with their names, those of tuples with their places."""
    for name, value in vars(times).items():
        if isinstance(value, tuple):
            for place, item in enumerate(value):
                yield f"{name}.{place}", item
        else:
            yield name, value


class _Keeping(Host):
    """What both kinds of hosts let the keeper note."""

    keeper: Keeper
    taken: tuple[int, int] = (0, 0)
    """Calls of Python and what was owed, by its number, when it was last paid."""

    def _new_spend(self, label: str) -> int:
        return self.keeper.spend(label, self.launches_as, *self.taken)

    def _is_real(self, queue: Stream) -> bool:
        """Return whether it is no stream under capture."""
        return type(queue) is Stream

    def spend(self, label: str) -> int:
        end_ps = super().spend(label)
        self.keeper.put(Action.SPEND, self._new_spend(label))
        return end_ps

    def launch(self, name: str, timing: OperationTiming, sip_id: int) -> None:
        queue = self.queue_of(sip_id)
        if not self._is_real(queue):
            super().launch(name, timing, sip_id)
            return
        earliest_ps = super().spend(name)
        keeper = self.keeper
        stream = keeper.stream(queue)
        keeper.is_on(self.state.sip_id)
        keeper.put(Action.OPERATION, keeper.timing(timing), stream, self._new_spend(name))
        tail: Any = queue.tail
        if not (type(tail) is Burst and tail.join(earliest_ps, timing)):
            self.begin_burst(queue, earliest_ps, timing).made_by = (Action.TAIL, stream)

    def copy(self, template: Template, sip_id: int) -> StreamCommand:
        keeper = self.keeper
        command = super().copy(template, sip_id)
        queue = self._run.queue_for(sip_id)
        if self._is_real(queue):
            keeper.is_on(self.state.sip_id)
            keeper.makes(command, Action.COPY, keeper.copy(template, sip_id), keeper.stream(queue))
        return command

    def enqueue(self, command: StreamCommand, stream: Stream) -> None:
        super().enqueue(command, stream)
        if not self._is_real(stream):
            return
        number = self.keeper.stream(stream)
        if isinstance(command, Marker):
            self.keeper.makes(command, Action.HOST_MARK, number, int(command.parts))
        elif isinstance(command, WaitFor):
            # Who waits for it waits for the end of the stream.
            command.made_by = (Action.TAIL, number)
            self.keeper.waits(Action.HOST_STREAM_WAITS, command.awaited, number)

    def passes(self, handle: Handle, stream: Stream) -> None:
        if self._is_real(stream):
            self.keeper.waits(Action.HOST_STREAM_WAITS, handle, self.keeper.stream(stream))

    def _note(self, action: Action, what: str | int, asked: str, number: int) -> None:
        """Note what the program asks its host for; its calls may be counted there."""
        calls = IN_THREAD.calls
        if calls is not None:
            calls.pause(FRAMES_OF_FUNCTION)
        if asked:
            self.keeper.asked[asked] += 1
        label = self.keeper.label(what) if isinstance(what, str) else what
        self.keeper.put(action, label, number)
        if calls is not None:
            calls.resume()

    def read(self) -> None:
        super().read()
        self.keeper.put(Action.HOST_READ)

    def allocate_segment(self) -> None:
        super().allocate_segment()
        self.keeper.put(Action.HOST_ALLOCATE)

    def catch_up(self) -> None:
        self.keeper.put(Action.CATCH_UP)
        super().catch_up()

    def wait(self, handle: Handle) -> None:
        is_pending = not handle.done
        super().wait(handle)
        self.keeper.waits(Action.HOST_WAIT, handle, is_pending=is_pending)


class KeptHost(_Keeping):
    """A host whose launches have one time."""

    def __init__(self, run: Run, rank: int, keeper: Keeper) -> None:
        super().__init__(run, rank)
        self.keeper, self.notes = keeper, self._note


class KeptEagerHost(_Keeping, EagerHost):
    """A host that takes time for what an eager program does."""

    def __init__(self, run: Run, rank: int, spec: HostSpec, keeper: Keeper) -> None:
        super().__init__(run, rank, spec)
        self.keeper, self.notes = keeper, self._note
        keeper.about["counts_python"] = True
        times = self.times
        counted: Any = CountedTimes(times)
        # What is owed counts; what is spent at once does not.
        for name in ("python_call_ps", "read_ps", "cuda_malloc_ps"):
            setattr(counted, name, getattr(times, name))
        self.times = self._counted = counted
        self._waits = self._has_paid_to_wait = False
        """Whether it is about to wait, and whether it has paid what it owed until then."""
        self._paid_late = (0, 0)
        """What it has paid after it had waited, as part of the wait."""
        self._view_ps = counted.called[HostPart.VIEW]

    def _take(self) -> int:
        num_calls = super()._take()
        owed = self._owed_ps
        if owed:
            self._owed_ps = CountedTimes.ps(owed)
            self.taken = (num_calls, self.keeper.owed(owed, self._counted.counts))
        else:
            self.taken = (num_calls, 0)
        return num_calls

    def _paid_ps(self, start_ps: int) -> int:
        end_ps = super()._paid_ps(start_ps)
        if self.taken != (0, 0):
            if self._has_paid_to_wait:
                self._paid_late = self.taken
            else:
                self.keeper.put(Action.PAY, *self.taken)
        self._has_paid_to_wait = self._waits
        return end_ps

    def wait(self, handle: Handle) -> None:
        # No call of a property: the program may be counted here.
        is_pending = handle.callbacks is not None
        self._waits, self._paid_late = True, (0, 0)
        try:
            EagerHost.wait(self, handle)
        finally:
            self._waits = self._has_paid_to_wait = False
        calls = IN_THREAD.calls
        if calls is not None:
            calls.pause(FRAMES_OF_FUNCTION)
        late = 0 if self._paid_late == (0, 0) else self.keeper.spend("", "", *self._paid_late) + 1
        self.keeper.waits(Action.HOST_WAIT, handle, late, is_pending=is_pending)
        if calls is not None:
            calls.resume()

    def catch_up(self) -> None:
        calls = IN_THREAD.calls
        if calls is not None:
            calls.pause(FRAMES_OF_FUNCTION)
        self.keeper.put(Action.CATCH_UP)
        if calls is not None:
            calls.resume()
        EagerHost.catch_up(self)


def kept_host(run: Run, rank: int) -> Host:
    """Return the host of a rank, as the run's machine describes it, which lets a keeper note it."""
    spec, keeper = run.machine.spec.host, run.keeper
    assert keeper is not None
    return KeptHost(run, rank, keeper) if spec is None else KeptEagerHost(run, rank, spec, keeper)
