"""Consecutive operations on a stream, as one command of the simulation.

A program launches thousands of small operations between two waits. One simulation event for each
would cost more than the operations; while a stream has its device to itself, their times follow by
additions. A burst does these additions, and yields in the middle when another stream wants the
device. The times are those of one event per operation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Any

from kernbench.clock import DeviceEngine, Stream, StreamCommand, Timer
from kernbench.op_log import Template
from kernbench.runtime_api import Action, Run
from kernbench.torch_bridge.base.operation_timing import OperationTiming


class Burst(StreamCommand):
    """Operations of one rank on one stream, in order; more may join while nothing waits for it."""

    def __init__(self, run: Run, queue: Stream, sip_id: int) -> None:
        super().__init__(run.simulation.env, "operations")
        self._run = run
        self._queue = queue
        self._rank = run.rank_state.rank
        self._sip_id = sip_id
        self._pes: DeviceEngine = run.devices.sip(sip_id).pes
        self._waiting: deque[tuple[int, OperationTiming]] = deque()
        self._planned: list[tuple[int, OperationTiming]] = []
        """Planned operations; their launches, templates, starts and ends are at the same
        positions."""
        self._launched_ps: list[int] = []
        self._templates: list[Template] = []
        self._starts_ps: list[int] = []
        self._ends_ps: list[int] = []
        self._timer: Timer | None = None
        self._is_over = False
        self._is_shared = False
        """Whether others may slow the last planned operation down."""
        self._is_parted = False
        """Whether its first operation starts as on an idle device."""
        self._callers: list[int] = []
        """The lines of those that are not logged, where lines are recorded."""
        self._is_ahead = False
        """Whether operations after the running one may be planned."""

    def join(self, earliest_ps: int, timing: OperationTiming) -> bool:
        """Append an operation; return False, without, if something waits for the burst's end."""
        callbacks = self.callbacks
        # The stream's own callback is one.
        if callbacks is None or len(callbacks) > 1 or self._is_over:
            return False
        self._waiting.append((earliest_ps, timing))
        if self._run.lines is not None:
            self._callers.append(self._run.lines.latest)
        return True

    @property
    def timings(self) -> list[OperationTiming]:
        """The operations that have not begun."""
        return [timing for _, timing in self._waiting]

    def begin(self) -> None:
        self._is_parted = self._queue.parted
        self._go_on()

    def enter(self, _: StreamCommand) -> None:
        """Take the device, which has become free; the device calls this."""
        self._take()

    def cut(self) -> None:
        """Yield after the running operation; the rest is planned anew."""
        if not self._is_ahead:
            return
        kept = max(bisect_right(self._starts_ps, self._run.simulation.now_ps), 1)
        self._waiting.extendleft(reversed(self._planned[kept:]))
        columns = (self._launched_ps, self._templates, self._starts_ps, self._ends_ps)
        for column in (self._planned, *columns):
            del column[kept:]
        assert self._timer is not None
        self._run.simulation.cancel(self._timer)
        self._await()
        self._share()

    def abandon(self) -> None:
        self.cut()
        self._waiting.clear()
        self._pes.waiting.clear()

    def describe(self) -> str:
        names = [timing.template(False).name for _, timing in self._waiting]
        names = [template.name for template in self._templates] + names
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        return f"{shown or 'operations'} on SIP {self._sip_id} (rank {self._rank})"

    def _go_on(self) -> None:
        simulation = self._run.simulation
        if not self._waiting:
            self._is_over = True
            self.end_after(0)
            return
        early_ps = self._waiting[0][0] - simulation.now_ps
        if early_ps > 0:
            # There may be nothing left by then.
            simulation.timer(early_ps).when_done(lambda _: self._go_on())
        else:
            self._ask()

    def _ask(self) -> None:
        pes = self._pes
        if pes.is_busy:
            pes.wanted_by(self, self)
        else:
            self._take()

    def _take(self) -> None:
        """Plan all operations, or only one if others use the device too."""
        run, waiting = self._run, self._waiting
        self._pes.is_busy = True
        self._is_ahead = len(waiting) > 1 and self._is_alone()
        at_ps = run.simulation.now_ps
        if self._is_ahead:
            planned = list(waiting)
            waiting.clear()
        else:
            planned = [waiting.popleft()]
        launched_ps, templates, starts_ps, ends_ps = [], [], [], []
        for earliest_ps, timing in planned:
            launched_ps.append(earliest_ps)
            at_ps, waited = max(at_ps, earliest_ps), at_ps > earliest_ps
            if waited and not self._is_parted:
                template = timing.queued or timing.template(True)
            else:
                template = timing.idle or timing.template(False)
            self._is_parted = False
            starts_ps.append(at_ps)
            at_ps += template.duration_ps
            ends_ps.append(at_ps)
            templates.append(template)
        self._planned, self._templates = planned, templates
        self._launched_ps, self._starts_ps, self._ends_ps = launched_ps, starts_ps, ends_ps
        self._await()
        if self._is_ahead:
            self._pes.holder = self
            run.devices.hbm.plan(self._sip_id, self)
        else:
            self._share()

    def _is_alone(self) -> bool:
        # What waits, as a copy of an engine's results does for its step, cuts this when it begins.
        queues = self._run.devices.queues(self._sip_id)
        return self._run.devices.hbm.is_idle(self._sip_id) and all(
            queue is self._queue or queue.is_waiting or queue.tail is None or queue.tail.done
            for queue in queues
        )

    def _await(self) -> None:
        """Schedule the end of the last planned operation, if no other slows it down."""
        simulation = self._run.simulation
        delay_ps = max(self._ends_ps[-1] - simulation.now_ps, 0)
        self._timer = simulation.timer(delay_ps, self.label)
        self._timer.when_done(lambda _: self._planned_is_done())

    def _share(self) -> None:
        """Let the running operation, the last one planned, share HBM with others."""
        self._is_ahead = False
        run, template = self._run, self._templates[-1]
        start_ps, end_ps = self._starts_ps[-1], self._ends_ps[-1]
        self._pes.holder = None
        run.devices.hbm.plan(self._sip_id, None)
        self._is_shared = end_ps > run.simulation.now_ps
        if self._is_shared:
            assert self._timer is not None
            run.devices.hbm.begin_alone(
                self._timer, self._sip_id, template, template.duration_ps, start_ps
            )

    def _planned_is_done(self) -> None:
        run, now_ps = self._run, self._run.simulation.now_ps
        if self._is_shared:
            self._is_shared = False
            self._ends_ps[-1] = max(self._ends_ps[-1], now_ps)
        ended_ps = self._ends_ps[-1]
        columns = (self._launched_ps, self._templates, self._starts_ps, self._ends_ps)
        self.ended_by = self.after = self._pes.last = run.recorder.in_a_row(
            (self._rank,), (self._sip_id,), self._queue.name, self.after, *columns
        )
        if run.lines is not None:
            count = len(self._templates)
            run.lines.launched(self.ended_by + 1 - count, self._callers[:count])
            del self._callers[:count]
        if ended_ps < now_ps:
            # It was cut between two operations: who takes the device now has not waited for it.
            self._pes.last = 0
        self._planned, self._templates = [], []
        if self._is_ahead:
            self._is_ahead = False
            self._pes.holder = None
            run.devices.hbm.plan(self._sip_id, None)
        self._timer = None
        self._pes.release()
        self._go_on()


def put_in_a_row(
    run: Run, queue: Stream, sip_id: int, earliest_ps: int, timings: Iterable[OperationTiming]
) -> None:
    """Enqueue operations that are launched together, as a graph's are."""
    tail: Any = queue.tail
    left = iter(timings)
    first = next(left)
    if not (type(tail) is Burst and tail.join(earliest_ps, first)):
        tail = Burst(run, queue, sip_id)
        tail.join(earliest_ps, first)
        # A burst must hold all that it may begin with.
        for timing in left:
            tail.join(earliest_ps, timing)
        if run.keeper is not None:
            tail.made_by = (Action.TAIL, run.keeper.stream(queue))
        queue.submit(tail)
    for timing in left:
        tail.join(earliest_ps, timing)
