"""Launches that communicate with other SIPs, paced by virtual time (ADR-0032).

What such a kernel does, and when, depends on what others do meanwhile. So nothing of it is known
when it begins: its programs run in step as far as they agree (a *strand*), each access that others
may notice happens when the clock is there, and a program that waits for memory to change is woken
by whoever changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from kernbench.clock import StreamCommand
from kernbench.commands import Atomic, DmaRead, DmaWrite, KernelTrace, Loop, Transfer
from kernbench.dtypes import Array
from kernbench.errors import RankFailedError
from kernbench.hardware import PS_PER_NS
from kernbench.interleaved import Decisions, InterleavedLaunch, Span, of_programs, parts_of
from kernbench.kernel_ir import SplitPrograms
from kernbench.kernel_time import StrandCosts, TimedStrands
from kernbench.memory import Buffer
from kernbench.op_log import Template
from kernbench.replay import PointerArg
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.base.signals import Heard, Knowledge
from kernbench.runtime_api.launches.paced_strands import (
    Commands,
    NoData,
    PacedStrand,
    Steps,
    StrandData,
    waits_of,
)
from kernbench.sanitizer import Clock, LiveWatch

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
        costs: Callable[[bool], StrandCosts],
        params: Sequence[Any],
        addresses: list[int],
        trace: KernelTrace | None,
        live: Callable[[PacedLaunch, Clock | None], InterleavedLaunch] | None,
        writes: Sequence[Buffer],
        launched_with: Mapping[str, Any],
        on_end: Callable[[PacedLaunch, Mapping[int, PointerArg]], None],
    ) -> None:
        """Prepare a launch; exactly one of ``trace`` and ``live`` is given."""
        super().__init__(run.simulation.env, name)
        self.engine = run.devices.sip(sip_id).pes
        self._run = run
        self._rank, self._sip_id = rank, sip_id
        self._num_programs, self._resident = num_programs, resident
        self._costs = costs
        self._params: Sequence[Any] = params
        self._addresses = addresses
        self._trace, self._make_live = trace, live
        self.writes = writes
        """The memory of its own SIP that it may write."""
        self._launched_with, self._on_end = launched_with, on_end
        self._stream = run.queue_for(sip_id).name
        self._live: InterleavedLaunch | None = None
        self.watch: LiveWatch | None = None
        """Set for a live launch in a run with the sanitizer."""
        self._timing: TimedStrands
        self._strands: dict[PacedStrand, None] = {}
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
        self._timing = run.timed_strands(self._sip_id, self._costs(self.queued))
        for index, value in enumerate(self._params):
            self._note_peer(index, value)
        begun = None
        # Launches of PyTorch programs have no clock: nothing says what orders them.
        if run.ordering is not None and self.clock is not None:
            begun = run.ordering.begin(self, self._stream)
            self._knowledge = Knowledge(run.signals, self, begun)
        if self._make_live is not None:
            run.replay_queue.drain()
            self._live = self._make_live(self, begun)
        run.simulation.open_ended[self] = None
        pes = np.arange(self._timing.num_pes)
        with self._beginning():
            for _ in range(self._resident):
                self._dispatch(pes)
        return None

    def finish(self) -> None:
        run = self._run
        reached = () if self._live is None else self._live.memory.reached
        self._addresses += [pointer.buffer.address for pointer in reached]
        self.ended_by = run.recorder.command(
            self._template,
            self._rank,
            self._sip_id,
            self.start_ps,
            self.end_ps,
            self._stream,
            self.after,
            tuple(self._addresses),
        )
        self._on_end(self, {} if self._live is None else self._live.memory.frame.pointers)
        # A buffer keeps its last writer; that must not keep other buffers alive.
        self._params, self._live, self._make_live, self.writes = (), None, None, ()
        self.watch = None

    def describe(self) -> str:
        text = f"kernel {self.label} on SIP {self._sip_id} (rank {self._rank})"
        waiting = [paced for paced in self._strands if paced.is_waiting]
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
        """Begin the next programs, one on each PE that has room."""
        while len(pes) and self._next_program < self._num_programs and self.error is None:
            count = min(len(pes), self._num_programs - self._next_program)
            if self._live is not None:
                count = min(count, self._live.most_in_step)
            ids = np.arange(self._next_program, self._next_program + count, dtype=np.int64)
            self._next_program += count
            mine, pes = pes[:count], pes[count:]
            if self._live is not None:
                strand = self._live.strand(ids)
                timed = self._timing.begin(ids, mine, self._run.simulation.now_ps)
                data = StrandData(strand, self._run.replay_queue)
                self._go(PacedStrand(timed, data, strand), self._follow)
            else:
                self._start_planned(ids, mine)

    def _start_planned(self, ids: Array, pes: Array) -> None:
        """Begin programs whose commands are known, each group of them in lockstep."""
        assert self._trace is not None
        for group in self._trace.groups:
            positions = np.flatnonzero(np.isin(group.program_ids, ids))
            if not len(positions):
                continue
            own = group.program_ids[positions]
            timed = self._timing.begin(own, pes[own - ids[0]], self._run.simulation.now_ps)
            commands = of_programs(group.body, positions)
            paced = PacedStrand(timed, NoData(self._trace.num_slots))
            self._go(paced, partial(self._go_through, commands=commands))

    def _go(self, paced: PacedStrand, steps: Callable[[PacedStrand], Steps]) -> None:
        self._strands[paced] = None
        self._timing.active += len(paced.timed.program_ids)
        paced.task = self._run.simulation.task(steps(paced), self._fail)
        paced.task.go_on()

    def _leave(self, paced: PacedStrand) -> None:
        self._strands.pop(paced, None)
        self._timing.active -= len(paced.timed.program_ids)

    def _ended(self, paced: PacedStrand) -> Steps:
        """Give the PEs of a strand to the next programs when its last command has ended."""
        self._last_ps = max(self._last_ps, paced.timed.end_ps)
        if self._next_program < self._num_programs:
            yield paced.timed.end_ps
        with self._beginning():
            self._leave(paced)
            self._dispatch(paced.timed.pes)

    def _end_if_over(self) -> None:
        under_way = self._strands or self._num_in_flight or self._num_beginning
        if under_way or self.error is not None:
            return
        now_ps = self._run.simulation.now_ps
        end_ps = max(self._last_ps, now_ps)
        self._template = self._timing.template(self.label, end_ps, self._launched_with)
        self._close(end_ps - now_ps)

    def _close(self, delay_ps: int) -> None:
        if self._live is not None:
            self._live.show_printed()
        del self._run.simulation.open_ended[self]
        self.end_after(delay_ps)

    def abandon(self) -> None:
        """End it where it is: what it waits for cannot happen, as another rank has failed."""
        self.error_seen = True
        self._fail(RankFailedError(f"{self.describe()} was ended, as another rank has failed"))

    def _fail(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = error
        for paced in self._strands:
            self._run.signals.forget(_wake_of(paced))
            if paced.task is not None:
                paced.task.cancel()
        self._close(0)

    # -- strands ---------------------------------------------------------------------------------

    def _go_through(self, paced: PacedStrand, commands: Commands) -> Steps:
        """Run a strand of commands that are known."""
        for part in parts_of(commands):
            self._timing.begin_operation(paced.timed)
            yield from self._carry_out(paced, part)
            self._timing.end_operation(paced.timed)
        yield from self._ended(paced)

    def _follow(self, paced: PacedStrand) -> Steps:
        """Run a strand whose commands are found as its programs execute."""
        strand, timing, timed = paced.strand, self._timing, paced.timed
        assert strand is not None
        assert isinstance(strand.recording, Decisions)
        while True:
            try:
                goes_on = strand.advance()
                for _ in range(strand.recording.take()):
                    timing.decide(timed)
                if strand.parts:
                    end_ps = 0
                    timing.begin_operation(timed)
                    for part in strand.parts:
                        end_ps = max(end_ps, (yield from self._carry_out(paced, part)))
                    timing.end_operation(timed)
                    if strand.settle():
                        timing.hold(timed, end_ps)
            except SplitPrograms as split:
                self._split(paced, split.labels)
                return
            if strand.is_waiting:
                yield from self._wait(paced)
                continue
            paced.deadline_ps = None
            if not goes_on:
                break
        yield from self._ended(paced)

    def _wait(self, paced: PacedStrand) -> Steps:
        """Wait until something that the strand has read changes."""
        strand, timed = paced.strand, paced.timed
        assert strand is not None
        if not any(watched.has_changed for watched in strand.watched):
            paced.is_waiting = True
            self._timing.active -= len(timed.program_ids)
            self._run.signals.wait(strand.watched, _wake_of(paced))
            if strand.may_give_up and paced.deadline_ps is None:
                paced.deadline_ps = timed.floor_ps + strand.timeout_ns * PS_PER_NS
                give_up = partial(self._give_up, paced, paced.deadline_ps)
                self._run.simulation.call_at(paced.deadline_ps, give_up)
            yield None
            self._timing.active += len(timed.program_ids)
            paced.is_waiting = False
        strand.watched = []
        self._timing.wait(timed, strand.loop_line, self._run.simulation.now_ps)

    def _give_up(self, paced: PacedStrand, deadline_ps: int) -> None:
        """End a wait that has timed out, if it is still pending."""
        assert paced.strand is not None
        if paced.is_waiting and paced.deadline_ps == deadline_ps and self.error is None:
            paced.strand.gives_up = True
            self._run.signals.forget(_wake_of(paced))
            _wake_of(paced)()

    def _split(self, paced: PacedStrand, labels: Array) -> None:
        """Split a strand whose programs diverge from here on."""
        assert paced.strand is not None
        with self._beginning():
            self._leave(paced)
            for strand in paced.strand.split(labels):
                positions = np.searchsorted(paced.timed.program_ids, strand.program_ids)
                timed = paced.timed.take(positions)
                data = StrandData(strand, self._run.replay_queue)
                self._go(PacedStrand(timed, data, strand, list(paced.sent)), self._follow)

    # -- commands --------------------------------------------------------------------------------

    def _carry_out(self, paced: PacedStrand, part: Commands) -> Timed:
        """Run one part of a strand; return when it has ended."""
        if self._live is not None:
            for index, pointer in enumerate(self._live.memory.reached, len(self._params)):
                self._note_peer(index, pointer)
        spans = paced.data.spans(part)
        yield from self._after_own(paced, spans)
        command = part[0]
        if isinstance(command, DmaRead | DmaWrite | Atomic) and self._concerns_others(command):
            return (yield from self._access(paced, part, command, spans))
        timed, timing, data = paced.timed, self._timing, paced.data
        if isinstance(command, Loop) and timing.reaches_out(command):
            end_ps = yield from timing.far_loops(timed, command, data.num_slots)
        else:
            end_ps = timing.run(timed, part, data.num_slots)
        if any(span.writes for span in spans):
            yield end_ps
        data.perform(part)
        self._run.signals.written(spans)
        return end_ps

    def _concerns_others(self, command: DmaRead | DmaWrite | Atomic) -> bool:
        """Whether an access must happen at its own point of virtual time."""
        if isinstance(command, DmaRead):
            return command.volatile or self._timing.reaches_out(command)
        return True

    def _access(
        self,
        paced: PacedStrand,
        part: Commands,
        command: DmaRead | DmaWrite | Atomic,
        spans: Sequence[Span],
    ) -> Timed:
        simulation, timing, timed, data = (
            self._run.simulation, self._timing, paced.timed, paced.data
        )  # fmt: skip
        issue = timing.issue(timed, command, data.num_slots)
        start_ps = timing.earliest_ps(timed, issue)
        while start_ps > simulation.now_ps:
            yield start_ps
            # Others may have taken the queue meanwhile.
            start_ps = timing.earliest_ps(timed, issue)
        outcome = timing.start(timed, issue, start_ps)
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
        paced.sent = [pair for pair in paced.sent if pair[1] > now_ps]
        paced.sent += [(span, outcome.effect_ps) for span in spans]
        self._num_in_flight += 1
        heard = {} if self._knowledge is None else self._knowledge.heard
        arrive = partial(self._arrive, effect, command, spans, heard)
        simulation.call_at(outcome.effect_ps, arrive)
        return outcome.done_ps

    def _arrive(
        self, effect: Callable[[], None], command: Transfer, spans: Sequence[Span], heard: Heard
    ) -> None:
        """Make a write visible."""
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

    def _after_own(self, paced: PacedStrand, spans: Sequence[Span]) -> Generator[int, None, None]:
        """Wait until the strand's own writes to these bytes are visible."""
        until_ps = [
            effect_ps
            for sent, effect_ps in paced.sent
            if effect_ps > self._run.simulation.now_ps and any(sent.meets(span) for span in spans)
        ]
        if until_ps:
            yield max(until_ps)

    def _note_peer(self, index: int, value: Any) -> None:
        if isinstance(value, PointerArg) and value.buffer.sip_id != self._sip_id:
            owner = value.buffer.symmetric
            self._timing.peers[index] = (value.buffer.sip_id, owner.rank)


def _wake_of(paced: PacedStrand) -> Callable[[], None]:
    assert paced.task is not None
    return paced.task.wake
