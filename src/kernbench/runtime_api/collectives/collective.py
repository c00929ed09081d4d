"""One call of a collective by all ranks of a group: who has arrived, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.clock import Flow, Handle, Share, demand_of, listed, rank_lines
from kernbench.errors import CollectiveMismatchError, CollectiveTimeoutError, KernbenchError
from kernbench.links import Asked
from kernbench.runtime_api.collectives.disagreement import differing, exchanged

if TYPE_CHECKING:
    from kernbench.runtime_api.base.run import Run
    from kernbench.runtime_api.collectives.work import Part

_PS_PER_S = 10**12


class Collective:
    """The meeting of the ranks. It starts once every rank has arrived and its inputs are ready.

    A rank's inputs are ready when its stream has reached the call and its previous collective on
    the same group has ended.
    """

    def __init__(
        self, run: Run, title: str, ranks: tuple[int, ...], timeout_ps: int, call: int = 0
    ) -> None:
        self._run = run
        self.title = title
        """How errors name it, e.g. ``all_reduce #7 on group world``."""
        self.call = call
        """For two ranks: the number of the call between them, from 1."""
        self._ranks = ranks
        self._works: list[Part | None] = [None] * len(ranks)
        self._num_absent = len(ranks)
        self._num_not_ready = len(ranks)
        self._counts: tuple[int, ...] = ()
        """Elements from every rank to every rank, if the parts of an all_to_all are uneven."""
        self._error: KernbenchError | None = None
        """Why it failed; ranks may still arrive."""
        self._timeout_ps = timeout_ps
        self.deadline_ps = run.simulation.now_ps + timeout_ps
        """In simulated time, counted from the arrival of the first rank."""
        if len(ranks) > 1:
            run.simulation.idling.limit(self)

    def arrive(
        self, position: int, work: Part, after: list[Handle], others: tuple[int, ...] = ()
    ) -> None:
        """Take a rank's part; its inputs are ready once all of ``after`` have ended.

        The rank stands for those at the positions ``others``, too (ADR-0166).
        """
        for place in (position, *others):
            assert self._works[place] is None
            self._works[place] = work
        work.collective = self
        work.num_ranks = 1 + len(others)
        self._num_absent -= work.num_ranks
        if self._num_absent == 0:
            self._run.simulation.idling.met(self)
        if self._error is not None:
            work.end_with(self._error)
            return
        if self._run.simulation.now_ps > self.deadline_ps:
            self.give_up(f"before rank {work.rank} came")
            return
        waiting = [handle for handle in after if not handle.done]
        left = len(waiting)

        def one_is_done(handle: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                work.after = handle.ended_by
                self._ready(work)

        for handle in waiting:
            handle.when_done(one_is_done)
        if self._num_absent == 0:
            self._check()
        if self._error is None and not waiting:
            self._ready(work)

    def described(self) -> dict[str, Any]:
        """Return what it takes to make it again."""
        return {
            "title": self.title,
            "ranks": self._ranks,
            "timeout_ps": self._timeout_ps,
            "call": self.call,
        }

    @property
    def is_complete(self) -> bool:
        """Whether every rank has arrived."""
        return self._num_absent == 0

    def missing(self) -> tuple[int, ...]:
        """Return the ranks that have not arrived yet."""
        if not self._num_absent:
            return ()
        return tuple(
            rank for rank, work in zip(self._ranks, self._works, strict=True) if work is None
        )

    def describe(self) -> str:
        """Return how errors name it."""
        return self.title

    def progress(self) -> str:
        """Return what it waits for."""
        missing = list(self.missing())
        return f"waits for {listed(missing)}" if missing else "started"

    def _ready(self, work: Part) -> None:
        work.ready_ps = self._run.simulation.now_ps
        self._num_not_ready -= work.num_ranks
        if self._num_not_ready == 0 and not work.done and work.error is None:
            try:
                self._start()
            except KernbenchError as error:
                self.fail(error)

    def parts(self) -> list[Part]:
        """Return the parts of the ranks that have arrived, in group order.

        A rank that stands for others has its part at their places, too.
        """
        return [work for work in self._works if work is not None]

    def _check(self) -> None:
        """Refuse calls that do not match, as soon as all are known."""
        works = self.parts()
        error = differing(self.title, works)
        try:
            if error is None:
                self._counts = exchanged(self.title, works)
        except CollectiveMismatchError as wrong:
            error = wrong
        if error is not None:
            self.fail(error)

    def fail(self, error: KernbenchError) -> None:
        """End every rank's part with an error."""
        self._error = error
        if self._run.keeper is not None:
            self._run.keeper.refused[f"{self.title} failed: {type(error).__name__}"] = None
        self._run.simulation.idling.met(self)
        for work in dict.fromkeys(self.parts()):
            work.end_with(error)

    def give_up(self, reason: str = "", timeout_ps: int = 0) -> None:
        """End it with a timeout error that names the ranks that have not arrived."""
        if self._error is not None:
            return
        timeout = f"{(timeout_ps or self._timeout_ps) / _PS_PER_S:g} s"
        reason = reason or f"without {listed(list(self.missing()))}"
        head = f"{self.title} timed out after {timeout}, {reason}:"
        self.fail(CollectiveTimeoutError("\n".join([head, *rank_lines(self._run.simulation)])))

    def _sips(self, works: list[Part]) -> tuple[int, ...]:
        """Return the SIP of every rank; with whom a rank stands for, those of their numbers."""
        if self._run.folding is None:
            return tuple([work.sip_id for work in works])
        return tuple(
            [work.sip_id - work.rank + rank for work, rank in zip(works, self._ranks, strict=True)]
        )

    def _start(self) -> None:
        run, works = self._run, self.parts()
        signature = works[0].signature
        counts = self._counts
        # Of uneven parts, what a rank sends on average.
        sent = -(-sum(counts) // len(works)) if counts else sum(works[0].sent)
        asked = Asked(
            signature.op,
            len(works),
            sent or signature.num_elements,
            signature.dtype.itemsize if signature.dtype is not None else 1,
            signature.root,
            counts,
        )
        sips = self._sips(works)
        choice = run.network.selector.choose(asked, sips, signature.algorithm, signature.protocol)
        schedule = choice.build(asked)
        starts_ps = tuple(work.ready_ps for work in works)
        placed = run.network.run(schedule, sips, starts_ps, choice.protocol)
        now_ps = run.simulation.now_ps
        # A sender may have left before the last rank arrived, but that was not known then.
        ends_ps = tuple(max(end_ps, now_ps) for end_ps in placed.ends_ps)
        if run.folding is not None:
            group = (self._ranks, sips)
            ends_ps = run.folding.level(
                run.network, schedule, choice.protocol, group, ends_ps, works
            )
        # All inputs are complete now, and nothing may touch the outputs before their ranks go on:
        # this is the record's place among the others.
        number = run.recorder.collective()
        for work in works:
            work.ended_by = number
        record = works[0].record(schedule, works)
        if record is not None:
            run.replay_queue.push(self, record)
        by_work = {
            work: Share(
                work.sip_id, demand_of(hbm_ps, end_ps - now_ps), work, end_ps - now_ps, end_ps
            )
            for work, hbm_ps, end_ps in zip(works, placed.hbm_ps, ends_ps, strict=True)
        }
        shares = list(by_work.values())
        last = works[ends_ps.index(max(ends_ps))]

        def ended(_: object) -> None:
            template, at = placed.template, tuple(range(len(works)))
            if run.folding is not None:
                at = tuple(
                    [place for place, work in enumerate(works) if work.rank == self._ranks[place]]
                )
                template = run.folding.logged(template, at)
            own = [works[place] for place in at]
            logged = run.recorder.command(
                template,
                tuple([work.rank for work in own]),
                tuple([work.sip_id for work in own]),
                tuple([work.ready_ps for work in own]),
                tuple([by_work[work].end_ps for work in own]),
                "collective",
                tuple([work.after for work in own]),
            )
            sites = tuple([(work.site.file, work.site.line) for work in own])
            run.recorder.collective_ended(number, logged, sites)
            # They know it; kept here, they and their tensors would wait for Python's collector.
            self._works.clear()

        last.before_waiters(ended)
        for share in shares:
            share.handle.end_after(share.end_ps - now_ps)
        flow = Flow(shares, now_ps)
        flow.on_delay = lambda by_ps: run.network.delay(placed, run.simulation.now_ps, by_ps)
        run.devices.hbm.begin(flow)
