"""One call of a collective by all ranks of a group: who has arrived, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.clock import Flow, Handle, Share, demand_of, listed, rank_lines
from kernbench.errors import CollectiveMismatchError, CollectiveTimeoutError, KernbenchError
from kernbench.runtime_api.base.folding import CollectiveTimes
from kernbench.runtime_api.collectives.disagreement import differing, exchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernbench.collectives import Schedule
    from kernbench.links import Transferred
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
        self.ranks = ranks
        """Its group, or the two ends of a send."""
        self._works: list[Part | None] = [None] * len(ranks)
        self._num_absent = len(ranks)
        self._num_not_ready = len(ranks)
        self._counts: tuple[int, ...] = ()
        """Elements from every rank to every rank, if the parts of an all_to_all are uneven."""
        self._error: KernbenchError | None = None
        """Why it failed; ranks may still arrive."""
        self._known: CollectiveTimes | None = None
        """In a folded run: when it runs, where that is known of a run of all ranks."""
        self._called_ps = 0
        """When the last rank came."""
        self.keeps_placement = False
        """Whether :attr:`placement` is asked for."""
        self.placement: CollectiveTimes | None = None
        """When it ran."""
        self._timeout_ps = timeout_ps
        self.deadline_ps = run.simulation.now_ps + timeout_ps
        """The deadline in simulated time, counted from the arrival of the first rank."""
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
        if self._run.lines is not None:
            work.line = self._run.lines.latest
        self._num_absent -= work.num_ranks
        if self._num_absent == 0:
            self._called_ps = self._run.simulation.now_ps
            self._run.simulation.idling.met(self)
        if self._error is not None:
            work.end_with(self._error)
            return
        if self._run.simulation.now_ps > self.deadline_ps:
            self.give_up(f"before rank {work.rank} came")
            return

        def begin(last: Handle) -> None:
            work.after = last.ended_by
            self._ready(work)

        waits = _when_last_ends(after, begin)
        if self._num_absent == 0:
            self._check()
        if self._error is None and not waits:
            self._ready(work)

    def described(self) -> dict[str, Any]:
        """Return what it takes to make it again."""
        return {
            "title": self.title,
            "ranks": self.ranks,
            "timeout_ps": self._timeout_ps,
            "call": self.call,
        }

    @property
    def is_complete(self) -> bool:
        """Whether every rank has arrived."""
        return self._num_absent == 0

    def until_all_call_ps(self) -> int:
        """Return how long it takes until ranks that do not run have come, where that is known."""
        folding = self._run.folding
        if folding is None or folding.placements is None:
            return 0
        known = folding.placements.next(self)
        return 0 if known is None else max(known.called_ps - self._run.simulation.now_ps, 0)

    def missing(self) -> tuple[int, ...]:
        """Return the ranks that have not arrived yet."""
        if not self._num_absent:
            return ()
        return tuple(
            rank for rank, work in zip(self.ranks, self._works, strict=True) if work is None
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
            folding, now_ps = self._run.folding, self._run.simulation.now_ps
            if folding is not None and folding.placements is not None:
                ready_ps = {part.rank: part.ready_ps for part in self.parts()}
                self._known = folding.placements.take(self, now_ps, ready_ps)
                if self._known is not None and self._known.begun_ps > now_ps:
                    # Others come later, who do not run.
                    wait_ps = self._known.begun_ps - now_ps
                    self._run.simulation.timer(wait_ps, self.title).when_done(self._begin)
                    return
            self._begin()

    def _begin(self, _: object = None) -> None:
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
        error: KernbenchError | None = differing(self.title, works)
        try:
            if error is None:
                self._counts = exchanged(self.title, works)
        except CollectiveMismatchError as wrong:
            error = wrong
        if error is not None:
            self.fail(self.unequal(error))

    def unequal(self, error: KernbenchError) -> KernbenchError:
        """Return the error of parts that do not fit, or that more ranks of a folded run have to."""
        folding = self._run.folding
        return error if folding is None else folding.unequal(self.ranks, error)

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
            [work.sip_id - work.rank + rank for work, rank in zip(works, self.ranks, strict=True)]
        )

    def _place(
        self, schedule: Schedule, sips: tuple[int, ...], protocol: str, works: list[Part]
    ) -> tuple[Transferred, tuple[int, ...]]:
        """Occupy the links; return how, and when each rank ends if nothing slows it down."""
        network, known, folding = self._run.network, self._known, self._run.folding
        if known is not None:
            placed = network.run(schedule, sips, known.starts_ps, protocol, known.free_ps)
            return placed, known.placed_ps
        placed = network.run(schedule, sips, tuple([work.ready_ps for work in works]), protocol)
        now_ps = self._run.simulation.now_ps
        # A sender may have left before the last rank arrived, but that was not known then.
        ends_ps = tuple([max(end_ps, now_ps) for end_ps in placed.ends_ps])
        if folding is not None:
            ends_ps = folding.level(network, schedule, protocol, (self.ranks, sips), ends_ps, works)
        return placed, ends_ps

    def _own(self, works: list[Part], *columns: Iterable[int]) -> Iterable[tuple[Any, ...]]:
        """Return rows of the parts, where one stands for several that of its own rank."""
        rows = zip(works, *columns, strict=True)
        if self._run.folding is None:
            return rows
        places = zip(rows, self.ranks, strict=True)
        return [row for row, rank in places if row[0].rank == rank]

    def _start(self) -> None:
        from kernbench.links import Asked

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
        free_ps = (
            run.network.free_ps(schedule, sips, choice.protocol) if self.keeps_placement else None
        )
        placed, placed_ps = self._place(schedule, sips, choice.protocol, works)
        now_ps = run.simulation.now_ps
        # All inputs are complete now, and nothing may touch the outputs before their ranks go on:
        # this is the record's place among the others.
        number = run.recorder.collective()
        for work in works:
            work.ended_by = number
        record = works[0].record(schedule, works)
        if record is not None:
            run.replay_queue.push(self, record)
        known = self._known
        ends_ps = placed_ps if known is None else known.ends_ps
        by_work = {
            work: Share(
                work.sip_id,
                demand_of(hbm_ps, at_ps - now_ps),
                work,
                at_ps - now_ps,
                end_ps,
                placed.template.draw(at_ps - now_ps, len(works)),
            )
            for work, hbm_ps, at_ps, end_ps in self._own(works, placed.hbm_ps, placed_ps, ends_ps)
        }
        shares = list(by_work.values())
        last = max(by_work, key=lambda work: by_work[work].end_ps)

        def ended(_: object) -> None:
            template, own = placed.template, works
            if free_ps is not None:
                self.placement = CollectiveTimes(
                    self._called_ps,
                    tuple([work.ready_ps for work in works]),
                    now_ps,
                    free_ps,
                    placed_ps,
                    tuple([by_work[work].end_ps for work in works]),
                )
            if run.folding is not None:
                at = [place for place, work in enumerate(works) if work.rank == self.ranks[place]]
                template = run.folding.logged(template, tuple(at))
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
            if run.lines is not None:
                run.lines.ended(logged, own[0].line)
            # They know it; kept here, they and their tensors would wait for Python's collector.
            self._works.clear()

        last.before_waiters(ended)
        for share in shares:
            share.handle.end_after(share.end_ps - now_ps)
        flow = Flow(shares, now_ps, known=known is not None)
        flow.on_delay = lambda by_ps: run.network.delay(placed, run.simulation.now_ps, by_ps)
        run.devices.hbm.begin(flow)


def _when_last_ends(handles: Iterable[Handle], then: Callable[[Handle], None]) -> bool:
    """Call ``then`` with the last of some handles to end; return False where all have ended."""
    waiting = [handle for handle in handles if not handle.done]
    left = len(waiting)

    def one_is_done(handle: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            then(handle)

    for handle in waiting:
        handle.when_done(one_is_done)
    return bool(waiting)


class LoneCollective:
    """In place of a collective: each part takes its time from when its own rank is ready.

    That time is the one of the algorithm that is chosen on idle links, when all ranks come at once.
    """

    is_complete = False

    def __init__(self, run: Run, ranks: tuple[int, ...], times_ps: dict[Any, int]) -> None:
        self._run, self._ranks, self._times_ps = run, ranks, times_ps

    def arrive(self, position: int, part: Part, after: list[Handle]) -> None:
        """Take a rank's part; it begins once all of ``after`` have ended."""
        if not _when_last_ends(after, lambda _: part.end_after(self._time_ps(part))):
            part.end_after(self._time_ps(part))

    def _time_ps(self, part: Part) -> int:
        from kernbench.links import Asked

        signature, ranks = part.signature, self._ranks
        key = (signature, part.sent, ranks)
        time_ps = self._times_ps.get(key)
        if time_ps is None:
            dtype = signature.dtype
            asked = Asked(
                signature.op,
                len(ranks),
                sum(part.sent) or signature.num_elements,
                1 if dtype is None else dtype.itemsize,
                signature.root,
            )
            selector = self._run.network.selector
            choice = selector.choose(asked, ranks, signature.algorithm, signature.protocol)
            time_ps = self._times_ps[key] = selector.bracket(asked, ranks, choice)[0]
        return time_ps
