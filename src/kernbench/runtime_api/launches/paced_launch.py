"""Launches that talk to other SIPs: in virtual time, beside those of other ranks (ADR-0032).

What such a kernel does, and when, depends on what others do meanwhile. So nothing of it is known
when it begins: its programs run in step as far as they agree (a *course*), each access that others
may notice happens when the clock is there, and a program that waits for memory to change is woken
by whoever changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernbench.clock import StreamCommand
from kernbench.commands import Atomic, DmaRead, DmaWrite, Loop
from kernbench.errors import RankFailedError
from kernbench.hardware import PS_PER_NS
from kernbench.interleaved import Decisions, of_programs, parts_of
from kernbench.kernel_ir import SplitPrograms
from kernbench.replay import PointerArg
from kernbench.runtime_api.launches.courses import (
    Commands,
    Course,
    NoData,
    Steps,
    StrandData,
    waits_of,
)
from kernbench.runtime_api.memory.signals import Knowledge

if TYPE_CHECKING:
    from kernbench.commands import KernelTrace, Transfer
    from kernbench.interleaved import InterleavedLaunch, Span, Strand
    from kernbench.kernel_time import LaneCosts, Lanes
    from kernbench.memory import Buffer
    from kernbench.op_log import Template
    from kernbench.runtime_api.base.run import Run
    from kernbench.runtime_api.memory.signals import Heard
    from kernbench.sanitizer import Clock, LiveWatch

Array = npt.NDArray[Any]
Timed = Generator[int | None, None, int]


class PacedLaunch(StreamCommand):
    """One launch; tells its stream when it has ended."""

    def __init__(
        self,
        run: Run,
        name: str,
        rank: int,
        sip_id: int,
        num_programs: int,
        resident: int,
        costs: Callable[[bool], LaneCosts],
        params: Sequence[Any],
        addresses: list[int],
        trace: KernelTrace | None,
        live: Callable[[PacedLaunch, Clock | None], InterleavedLaunch] | None,
        writes: Sequence[Buffer],
        on_end: Callable[[PacedLaunch, Mapping[int, PointerArg]], None],
    ) -> None:
        """Prepare a launch; exactly one of ``trace`` and ``live`` is given."""
        super().__init__(run.simulation.env, name)
        self.engine = run.sip(sip_id).pes
        self._run = run
        self._rank, self._sip_id = rank, sip_id
        self._num_programs, self._resident = num_programs, resident
        self._costs = costs
        self._params: Sequence[Any] = params
        self._addresses = addresses
        self._trace, self._make_live = trace, live
        self.writes = writes
        """What it may write of its own SIP's memory."""
        self._on_end = on_end
        self._stream = run.queue_for(sip_id).name
        self._live: InterleavedLaunch | None = None
        self.watch: LiveWatch | None = None
        """Of a live one in a run with the sanitizer."""
        self._lanes: Lanes
        self._courses: dict[Course, None] = {}
        self._next_program = 0
        self._knowledge: Knowledge | None = None
        """Under the sanitizer: what its programs know of other launches."""
        self._num_in_flight = 0
        self._num_beginning = 0
        self._last_ps = 0
        self._template: Template | None = None

    # -- the launch as a command of its stream --------------------------------------------------

    def begin(self) -> int | None:
        run = self._run
        self._lanes = run.lanes(self._sip_id, self._costs(self.queued))
        for index, given in enumerate(self._params):
            self._note_peer(index, given)
        begun = None
        if run.ordering is not None:
            begun = run.ordering.begin(self, self._stream)
            self._knowledge = Knowledge(run.signals, self, begun)
        if self._make_live is not None:
            run.replay_queue.drain()
            self._live = self._make_live(self, begun)
        run.simulation.open_ended[self] = None
        pes = np.arange(self._lanes.num_pes)
        with self._beginning():
            for _ in range(self._resident):
                self._dispatch(pes)
        return None

    def finish(self) -> None:
        run = self._run
        reached = () if self._live is None else self._live.memory.reached
        self._addresses += [pointer.buffer.address for pointer in reached]
        run.log(
            self._template,
            self._rank,
            self._sip_id,
            self.start_ps,
            self.end_ps,
            self._stream,
            tuple(self._addresses),
        )
        self._on_end(self, {} if self._live is None else self._live.memory.frame.pointers)
        # A buffer keeps its last writer; that must not keep other buffers alive.
        self._params, self._live, self._make_live, self.writes = (), None, None, ()
        self.watch = None

    def describe(self) -> str:
        text = f"kernel {self.label} on SIP {self._sip_id} (rank {self._rank})"
        waiting = [course for course in self._courses if course.is_waiting]
        if not waiting or self._live is None:
            return text
        text += f", which waits: {waits_of(waiting, self._live)}"
        left = self._num_programs - self._next_program
        if left:
            text += f"; {left} programs have not begun, as the PEs have no room for them"
        assert self.engine is not None
        for _, command in self.engine.waiting:
            text += f"; {command.describe()} waits for its PEs"
        return text

    # -- programs --------------------------------------------------------------------------------

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """The launch is not over while some of its programs have yet to begin."""
        self._num_beginning += 1
        try:
            yield
        finally:
            self._num_beginning -= 1
        self._end_if_over()

    def _dispatch(self, pes: Array) -> None:
        """Begin the next programs on PEs that have room for one more each."""
        while len(pes) and self._next_program < self._num_programs and self.error is None:
            count = min(len(pes), self._num_programs - self._next_program)
            if self._live is not None:
                count = min(count, self._live.most_in_step)
            ids = np.arange(self._next_program, self._next_program + count, dtype=np.int64)
            self._next_program += count
            mine, pes = pes[:count], pes[count:]
            if self._live is not None:
                strand = self._live.strand(ids)
                self._start(ids, mine, strand)
            else:
                self._start_planned(ids, mine)

    def _start(self, ids: Array, pes: Array, strand: Strand) -> None:
        lane = self._lanes.begin(ids, pes, self._run.simulation.now_ps)
        data = StrandData(strand, self._run.replay_queue)
        self._go(Course(lane, data, strand), self._follow)

    def _start_planned(self, ids: Array, pes: Array) -> None:
        """Begin programs whose commands are known, each group of them in step."""
        assert self._trace is not None
        for group in self._trace.groups:
            positions = np.flatnonzero(np.isin(group.program_ids, ids))
            if not len(positions):
                continue
            own = group.program_ids[positions]
            lane = self._lanes.begin(own, pes[own - ids[0]], self._run.simulation.now_ps)
            commands = of_programs(group.body, positions)
            course = Course(lane, NoData(self._trace.num_slots))
            self._go(course, partial(self._go_through, commands=commands))

    def _go(self, course: Course, steps: Callable[[Course], Steps]) -> None:
        self._courses[course] = None
        self._lanes.active += len(course.lane.program_ids)
        course.task = self._run.simulation.task(steps(course), self._fail)
        course.task.go_on()

    def _leave(self, course: Course) -> None:
        self._courses.pop(course, None)
        self._lanes.active -= len(course.lane.program_ids)

    def _ended(self, course: Course) -> Steps:
        """Give the PEs of a course to the next programs when its last command has ended."""
        self._last_ps = max(self._last_ps, course.lane.end_ps)
        if self._next_program < self._num_programs:
            yield course.lane.end_ps
        with self._beginning():
            self._leave(course)
            self._dispatch(course.lane.pes)

    def _end_if_over(self) -> None:
        under_way = self._courses or self._num_in_flight or self._num_beginning
        if under_way or self.error is not None:
            return
        now_ps = self._run.simulation.now_ps
        end_ps = max(self._last_ps, now_ps)
        self._template = self._lanes.template(self.label, end_ps)
        self._close(end_ps - now_ps)

    def _close(self, delay_ps: int) -> None:
        if self._live is not None:
            self._live.show_printed()
        del self._run.simulation.open_ended[self]
        self.end_after(delay_ps)

    def abandon(self) -> None:
        """End it where it is: what it waits for cannot come, as another rank has failed."""
        self.error_seen = True
        self._fail(RankFailedError(f"{self.describe()} was ended, as another rank has failed"))

    def _fail(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = error
        for course in self._courses:
            self._run.signals.forget(_wake_of(course))
            if course.task is not None:
                course.task.cancel()
        self._close(0)

    # -- courses ---------------------------------------------------------------------------------

    def _go_through(self, course: Course, commands: Commands) -> Steps:
        """Take a course through commands that are known."""
        for part in parts_of(commands):
            self._lanes.begin_operation(course.lane)
            yield from self._carry_out(course, part)
            self._lanes.end_operation(course.lane)
        yield from self._ended(course)

    def _follow(self, course: Course) -> Steps:
        """Take a course through what its strand comes to."""
        strand, lanes, lane = course.strand, self._lanes, course.lane
        assert strand is not None
        assert isinstance(strand.recording, Decisions)
        while True:
            try:
                goes_on = strand.advance()
                for _ in range(strand.recording.take()):
                    lanes.decide(lane)
                if strand.parts:
                    end_ps = 0
                    lanes.begin_operation(lane)
                    for part in strand.parts:
                        end_ps = max(end_ps, (yield from self._carry_out(course, part)))
                    lanes.end_operation(lane)
                    if strand.settle():
                        lanes.hold(lane, end_ps)
            except SplitPrograms as split:
                self._split(course, split.labels)
                return
            if strand.is_waiting:
                yield from self._wait(course)
                continue
            course.deadline_ps = None
            if not goes_on:
                break
        yield from self._ended(course)

    def _wait(self, course: Course) -> Steps:
        """Wait until something that the course has read looks different."""
        strand, lane = course.strand, course.lane
        assert strand is not None
        if not any(each.has_changed for each in strand.watched):
            course.is_waiting = True
            self._lanes.active -= len(lane.program_ids)
            self._run.signals.wait(strand.watched, _wake_of(course))
            if strand.may_give_up and course.deadline_ps is None:
                course.deadline_ps = lane.floor_ps + strand.timeout_ns * PS_PER_NS
                give_up = partial(self._give_up, course, course.deadline_ps)
                self._run.simulation.call_at(course.deadline_ps, give_up)
            yield None
            self._lanes.active += len(lane.program_ids)
            course.is_waiting = False
        strand.watched = []
        self._lanes.wait(lane, strand.loop_line, self._run.simulation.now_ps)

    def _give_up(self, course: Course, deadline_ps: int) -> None:
        """End a wait that has a timeout, if it is still going on."""
        assert course.strand is not None
        if course.is_waiting and course.deadline_ps == deadline_ps and self.error is None:
            course.strand.gives_up = True
            self._run.signals.forget(_wake_of(course))
            _wake_of(course)()

    def _split(self, course: Course, labels: Array) -> None:
        """Let the programs of a course go different ways from here on."""
        assert course.strand is not None
        with self._beginning():
            self._leave(course)
            for strand in course.strand.split(labels):
                positions = np.searchsorted(course.lane.program_ids, strand.program_ids)
                lane = course.lane.take(positions)
                data = StrandData(strand, self._run.replay_queue)
                self._go(Course(lane, data, strand, list(course.sent)), self._follow)

    # -- commands --------------------------------------------------------------------------------

    def _carry_out(self, course: Course, part: Commands) -> Timed:
        """Take a course through a part; return when it has ended."""
        self._note_reached()
        spans = course.data.spans(part)
        yield from self._after_own(course, spans)
        command = part[0]
        if isinstance(command, DmaRead | DmaWrite | Atomic) and self._concerns_others(command):
            return (yield from self._access(course, part, command, spans))
        lane, lanes, data = course.lane, self._lanes, course.data
        if isinstance(command, Loop) and lanes.reaches_out(command):
            end_ps = yield from lanes.far_loops(lane, command, data.num_slots)
        else:
            end_ps = lanes.run(lane, part, data.num_slots)
        if any(span.writes for span in spans):
            yield end_ps
        data.perform(part)
        self._run.signals.written(spans)
        return end_ps

    def _concerns_others(self, command: DmaRead | DmaWrite | Atomic) -> bool:
        """Whether an access has to happen when the clock is there."""
        if isinstance(command, DmaRead):
            return command.volatile or self._lanes.reaches_out(command)
        return True

    def _access(
        self,
        course: Course,
        part: Commands,
        command: DmaRead | DmaWrite | Atomic,
        spans: Sequence[Span],
    ) -> Timed:
        simulation, lanes, lane, data = (
            self._run.simulation, self._lanes, course.lane, course.data
        )  # fmt: skip
        issue = lanes.issue(lane, command, data.num_slots)
        start_ps = lanes.earliest_ps(lane, issue)
        while start_ps > simulation.now_ps:
            yield start_ps
            # Others may have taken the queue meanwhile.
            start_ps = lanes.earliest_ps(lane, issue)
        outcome = lanes.start(lane, issue, start_ps)
        if isinstance(command, DmaRead) or (
            isinstance(command, Atomic) and command.dst is not None
        ):
            yield outcome.effect_ps
            data.perform(part)
            if self._knowledge is not None:
                self._knowledge.look(command, spans)
                self._knowledge.tell(command, spans, self._knowledge.heard)
            self._run.signals.written(spans)
            return outcome.done_ps
        effect = data.capture(part)
        now_ps = simulation.now_ps
        course.sent = [each for each in course.sent if each[1] > now_ps]
        course.sent += [(span, outcome.effect_ps) for span in spans]
        self._num_in_flight += 1
        heard = {} if self._knowledge is None else self._knowledge.heard
        arrive = partial(self._arrive, effect, command, spans, heard)
        simulation.call_at(outcome.effect_ps, arrive)
        return outcome.done_ps

    def _arrive(
        self,
        effect: Callable[[], None],
        command: Transfer,
        spans: Sequence[Span],
        heard: Heard,
    ) -> None:
        """Let what was written take effect."""
        self._num_in_flight -= 1
        if self.error is not None:
            return
        try:
            effect()
        except Exception as error:
            self._fail(error)
            return
        if self._knowledge is not None:
            self._knowledge.tell(command, spans, heard)
        self._run.signals.written(spans)
        self._end_if_over()

    def _after_own(self, course: Course, spans: Sequence[Span]) -> Generator[int, None, None]:
        """Wait until what the course itself has written there has taken effect."""
        until_ps = [
            effect_ps
            for sent, effect_ps in course.sent
            if effect_ps > self._run.simulation.now_ps and any(sent.meets(span) for span in spans)
        ]
        if until_ps:
            yield max(until_ps)

    def _note_reached(self) -> None:
        """Take note of the tensors that the launch has come to by now."""
        if self._live is not None:
            for index, pointer in enumerate(self._live.memory.reached, len(self._params)):
                self._note_peer(index, pointer)

    def _note_peer(self, index: int, given: Any) -> None:
        if isinstance(given, PointerArg) and given.buffer.sip_id != self._sip_id:
            owner = given.buffer.symmetric
            self._lanes.peers[index] = (given.buffer.sip_id, owner.rank)


def _wake_of(course: Course) -> Callable[[], None]:
    assert course.task is not None
    return course.task.wake
