"""``torch.multiprocessing``: ranks as cooperative workers of one process (ADR-0027 D1)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from gc import get_threshold, set_threshold
from typing import Any

from kernbench.clock import Carrier, Rank, Timer, on_greenlet, raised_at, wait_line
from kernbench.errors import DeadlockError, RankDiedError, RankFailedError, UsageError, exit_call
from kernbench.lazy import LAZY_HELP, lazy_kind, refuse_lazy_result
from kernbench.runtime_api.base.rank_state import RankState
from kernbench.runtime_api.base.run import Run

CarrierOf = Callable[[int], Carrier]
"""What each rank runs on, by its number."""

_PS_PER_S = 10**12
_START_METHODS = ("spawn", "fork", "forkserver")


class SpawnException(ExceptionGroup[Exception]):
    """Ranks failed: holds what each root-cause rank raised, not what others raised as a result.

    ``errors`` maps the rank to its exception, whose traceback is the original one.
    """

    errors: Mapping[int, Exception]

    def __new__(cls, errors: Mapping[int, Exception]) -> SpawnException:
        ranks = list(errors)
        names = ", ".join(f"{rank} ({type(errors[rank]).__name__})" for rank in ranks)
        spawn_exception = super().__new__(
            cls, f"rank{'s' if len(ranks) > 1 else ''} {names} failed", list(errors.values())
        )
        spawn_exception.errors = dict(errors)
        return spawn_exception

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        # Exceptions keep what they were made of in args.
        self.args = (errors,)

    def derive(self, excs: Any) -> Any:
        return ExceptionGroup(self.message, excs)


class SpawnedProcess:
    """A rank of a ``spawn`` as ``ProcessContext.processes`` has it."""

    pid = None
    """A rank has no process of the operating system's that a signal could be sent to."""

    def __init__(self, rank: Rank, end: Callable[[Rank, str], None]) -> None:
        self.name = f"SpawnProcess-{rank.rank_id + 1}"
        self._rank = rank
        self._end = end

    @property
    def exitcode(self) -> int | None:
        """As of a process: None while it runs, 1 if it raised, -15 if it was ended."""
        error = self._rank.error
        if self._rank.alive:
            return None
        if self._rank.aborted:
            return -signal.SIGTERM
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        return int(error is not None)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._rank.alive

    def terminate(self) -> None:
        """End it where it waits: the spawn fails, as when a process is killed."""
        self._end(self._rank, "terminate()")

    def kill(self) -> None:
        """The same."""
        self._end(self._rank, "kill()")


class SpawnContext:
    """The ranks of a ``spawn`` in progress."""

    def __init__(self, run: Run, spawn_id: int) -> None:
        self._run = run
        self._spawn_id = spawn_id
        self._done = run.simulation.handle("the end of spawn")
        self._ranks: list[Rank] = []
        self._num_alive = 0
        self._abort_is_due = False
        self._waited: list[str] = []
        self._joined = False
        self._thresholds: tuple[int, int, int] | None = None
        """Thresholds of Python's garbage collector before the ranks started."""
        self._deaths: list[Timer] = []
        """Deaths that the machine's scenario has in store."""
        self._died: dict[int, RankDiedError] = {}

    def start(
        self, fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int, carrier_of: CarrierOf
    ) -> None:
        """Start ``fn(rank, *args)`` for each rank, bound to the SIP of its number."""
        folding = self._run.folding
        if folding is not None and folding.num_ranks != nprocs:
            raise UsageError(
                f"the program cannot be folded: it spawns {nprocs} ranks of {folding.num_ranks}; "
                "spawn torch.world_size ranks, or leave --fold out"
            )
        running = range(nprocs) if folding is None else folding.running
        self._num_alive = len(running)
        self._let_garbage_wait(len(running))
        for rank in running:
            state = RankState(rank, nprocs, sip_id=rank, spawn_id=self._spawn_id)
            if self._run.ordering is not None:
                self._run.ordering.starts(state, self._run.rank_state)
            self._ranks.append(
                self._run.simulation.start_rank(
                    rank, _body(fn, rank, args), self._rank_ended, state, carrier_of(rank)
                )
            )
        self._let_die(nprocs)
        if self._run.keeper is not None:
            self._run.keeper.spawns(self, self._ranks, self._spawn_id)

    def _let_die(self, nprocs: int) -> None:
        """Schedule the deaths of the scenario that are still to come."""
        simulation = self._run.simulation
        for death in self._run.machine.spec.scenario.deaths:
            if death.rank >= nprocs:
                raise UsageError(
                    f"scenario.deaths names rank {death.rank}, but {nprocs} ranks were started "
                    f"(0 to {nprocs - 1})"
                )
            at_ps = round(death.at_s * _PS_PER_S)
            if at_ps >= simulation.now_ps:
                timer = simulation.timer(at_ps - simulation.now_ps, f"rank {death.rank}'s death")
                timer.when_done(partial(self._die, self._ranks[death.rank], death.at_s))
                self._deaths.append(timer)

    def _die(self, rank: Rank, at_s: Fraction, _: object) -> None:
        """End a rank by a fault."""
        if rank.alive:
            self._died[rank.rank_id] = RankDiedError(
                f"rank {rank.rank_id} died at {float(at_s):g} s, as scenario.deaths says; "
                "--max-restarts N starts all ranks again"
            )
            rank.abort()

    @property
    def processes(self) -> list[SpawnedProcess]:
        """The ranks, in order."""
        return [SpawnedProcess(rank, self._terminate) for rank in self._ranks]

    def pids(self) -> list[int | None]:
        """Return None for each rank; see :attr:`SpawnedProcess.pid`."""
        return [process.pid for process in self.processes]

    def _terminate(self, rank: Rank, how: str) -> None:
        if rank.alive:
            self._died[rank.rank_id] = RankDiedError(
                f"rank {rank.rank_id} was ended by the program, which called {how} of its process"
            )
            rank.abort()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Run until every rank has returned; returns True. Timeouts are accepted and ignored.

        Raises:
            SpawnException: Ranks raised.
            DeadlockError: Nothing can make progress.
        """
        if self._joined:
            return True
        self._joined = True
        simulation = self._run.simulation
        if self._run.keeper is not None:
            self._run.keeper.joins(self)
        deadlock: DeadlockError | None = None
        try:
            if self._num_alive:
                try:
                    simulation.run_until(self._done)
                    simulation.has_woken(self._done, simulation.running)
                except DeadlockError as error:
                    deadlock = error
                    self._end_after_deadlock()
                except KeyboardInterrupt as error:
                    # It came between the turns of ranks.
                    for rank in self._ranks:
                        if rank.alive:
                            error.add_note(wait_line(rank).strip())
                    raise
        finally:
            self.end()
            simulation.ranks = [rank for rank in simulation.ranks if rank not in self._ranks]
            if self._run.ordering is not None:
                for rank in self._ranks:
                    self._run.ordering.joins(self._run.rank_state, rank.local)
        self._raise_outcome(deadlock)
        return True

    def end(self) -> None:
        """End the ranks that have not ended, and restore the state of Python that they share."""
        for rank in self._ranks:
            if rank.alive:
                rank.kill()
        for death in self._deaths:
            if not death.done:
                # The clock need not go there.
                self._run.simulation.cancel(death)
        self._deaths.clear()
        thresholds, self._thresholds = self._thresholds, None
        if thresholds is not None and get_threshold() == _scaled(thresholds, len(self._ranks)):
            set_threshold(*thresholds)

    def _let_garbage_wait(self, nprocs: int) -> None:
        """Scale the garbage collector's thresholds by the number of ranks.

        What a rank holds while others run would otherwise be scanned again and again because of
        what they allocate. A program that asks for the thresholds sees the scaled ones.
        """
        self._thresholds = get_threshold()
        set_threshold(*_scaled(self._thresholds, nprocs))

    def _end_after_deadlock(self) -> None:
        self._run.simulation.abandon()
        for rank in self._ranks:
            rank.abort()
        try:
            self._run.simulation.drain()
        except DeadlockError:
            # A rank waits for ever in a finally block, too; join() ends it.
            return

    def _rank_ended(self, rank: Rank) -> None:
        self._num_alive -= 1
        rank.error = self._died.get(rank.rank_id, rank.error)
        error = rank.error
        if isinstance(error, SystemExit) and not rank.aborted and error.code not in (None, 0):
            rank.error = RankFailedError(f"rank {rank.rank_id} called {exit_call(error)}")
        failed = rank.error is not None and not isinstance(rank.error, SystemExit)
        if failed and not self._abort_is_due:
            self._abort_is_due = True
            # Ranks that are due at this very time go first: they may have a cause of their own.
            self._run.simulation.call_soon(self._abort_siblings)
        if self._num_alive == 0:
            self._done.woken_by = rank.rank_id
            self._done.end_after(0)

    def _abort_siblings(self) -> None:
        self._run.simulation.abandon()
        failed = {
            rank.rank_id
            for rank in self._ranks
            if rank.error is not None and not isinstance(rank.error, SystemExit)
        }
        # Who ends a run wants to know what all ranks were at.
        is_ended = any(isinstance(rank.error, KeyboardInterrupt) for rank in self._ranks)
        for rank in self._ranks:
            if not rank.alive:
                continue
            handle = rank.waiting_for
            waits_for = handle.waits_for() if handle is not None else ()
            if is_ended or failed.intersection(waits_for):
                self._waited.append(wait_line(rank).strip())
            rank.abort()

    def _raise_outcome(self, deadlock: DeadlockError | None) -> None:
        causes: dict[int, Exception] = {}
        echoes: dict[int, Exception] = {}
        while_cleaning_up: list[str] = []
        for rank in self._ranks:
            error = rank.error
            if error is None or isinstance(error, SystemExit):
                continue
            if not isinstance(error, Exception):
                error.add_note(f"rank {rank.rank_id}  ran    {raised_at(error)}")
                for note in self._waited:
                    error.add_note(note)
                raise error
            if rank.aborted and rank.rank_id not in self._died:
                if not isinstance(error, RankFailedError):
                    while_cleaning_up.append(
                        f"rank {rank.rank_id} raised {type(error).__name__} while it was ended: "
                        f"{error}"
                    )
                echoes[rank.rank_id] = error
            else:
                error.add_note(f"in rank {rank.rank_id} on SIP {rank.local.sip_id}")
                causes[rank.rank_id] = error
        # A deadlock of ranks that were being ended is no cause.
        first = next(iter(causes.values()), deadlock)
        if first is None:
            return
        for note in (*self._waited, *while_cleaning_up):
            first.add_note(note)
        if causes:
            raise SpawnException(causes)
        raise first


class StartedRank:
    """A rank that the program has started on its own, as a process (ADR-0101)."""

    def __init__(self, run: Run, spawn_id: int, number: int) -> None:
        self._run = run
        self.state = RankState(number, number + 1, sip_id=number, spawn_id=spawn_id)
        self.starts_others = False
        self._end = run.simulation.handle(f"the end of the process on SIP {number}")
        self._rank: Rank | None = None

    @property
    def alive(self) -> bool:
        return self._rank is not None and self._rank.alive

    @property
    def number(self) -> int:
        """The number of its SIP."""
        return self.state.sip_id

    def start(self, fn: Callable[[], object], carrier: Carrier) -> None:
        """Schedule it to run ``fn()``, which handles its own errors, when the clock next runs."""
        if self._run.keeper is not None:
            self._run.keeper.refused["it starts processes one by one"] = None
        if self._run.ordering is not None:
            self._run.ordering.starts(self.state, self._run.rank_state)
        self._rank = self._run.simulation.start_rank(
            self.number, fn, self._ended, self.state, carrier
        )

    def wait(self, delay_ps: int | None = None) -> bool:
        """Block the caller until it has ended or a timeout is over; return whether it has ended.

        Raises:
            DeadlockError: Nothing can make progress.
        """
        if not self._run.simulation.wait_at_most(self._end, delay_ps):
            return False
        if self._run.ordering is not None:
            self._run.ordering.joins(self._run.rank_state, self.state)
        return True

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in it where it waits, before it waits on."""
        if self._rank is not None and self._rank.alive:
            self._rank.call(function)

    def end(self) -> None:
        """End it where it waits; its ``finally`` blocks run."""
        rank, simulation = self._rank, self._run.simulation
        if rank is None or not rank.alive:
            return
        if simulation.running is not None:
            rank.abort()
            return
        timers = [item.waiting_for for item in (rank, *rank.threads)]
        rank.kill()
        for timer in timers:
            # The clock need not go to where it slept.
            if isinstance(timer, Timer) and not timer.done:
                simulation.idling.cancel(timer)
        if simulation.main_resumes is not None:
            simulation.main_resumes()
        self._ended(rank)

    def _ended(self, rank: Rank) -> None:
        simulation = self._run.simulation
        simulation.ranks = [item for item in simulation.ranks if item is not rank]
        error = rank.error
        if error is not None and not isinstance(error, (Exception, SystemExit)):
            # An interrupt is for whoever waits.
            self._end.error = error  # type: ignore[assignment]
        self._end.woken_by = rank.rank_id
        self._end.end_after(0)


class StartedRanks:
    """Ranks that were started one by one: each fails on its own, as processes do."""

    def __init__(self, run: Run, spawn_id: int) -> None:
        self._run = run
        self._spawn_id = spawn_id
        self._ranks: list[StartedRank] = []

    @property
    def alive(self) -> bool:
        return any(rank.alive for rank in self._ranks)

    def add(self) -> StartedRank:
        """Return a rank, not yet started, on the first SIP without one.

        One that starts others leaves its own SIP to them, as the program does that started it.

        Raises:
            UsageError: Each SIP has one.
        """
        for rank in self._ranks:
            rank.starts_others |= rank.state is self._run.rank_state
        taken = {rank.number for rank in self._ranks if rank.alive and not rank.starts_others}
        number = next(index for index in range(len(taken) + 1) if index not in taken)
        machine = self._run.machine
        if number >= machine.num_sips:
            raise UsageError(
                f"{number} processes were started as ranks and have not ended, but machine "
                f"{machine.name} has {machine.num_sips} SIPs for them; start fewer, or name a "
                f"larger machine (--machine NAME:{number + 1})"
            )
        self._run.world_size = max(self._run.world_size, number + 1)
        started_rank = StartedRank(self._run, self._spawn_id, number)
        self._ranks.append(started_rank)
        return started_rank

    def join(self) -> None:
        """Run until all have ended."""
        for rank in self._ranks:
            if rank.alive:
                rank.wait()

    def end(self) -> None:
        """End those that have not ended."""
        for rank in self._ranks:
            rank.end()


class Multiprocessing:
    """The module ``torch.multiprocessing`` of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._num_spawns = 0
        self._latest: SpawnContext | StartedRanks | None = None

    def join(self) -> None:
        """Join the ranks of a spawn that the program did not join itself."""
        if self._latest is not None:
            self._latest.join()

    def end(self) -> None:
        """End the ranks that were not joined."""
        if self._latest is not None:
            self._latest.end()

    def spawn(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> SpawnContext | None:
        """Run ``fn(rank, *args)`` on ``nprocs`` ranks, each bound to one SIP; see torch's.

        Ranks are cooperative workers of this process: they share its memory, and one runs until
        it waits. ``daemon`` and ``start_method`` are accepted and mean nothing here. Without
        ``join`` the ranks run when the returned context is joined, or main waits.

        Raises:
            SpawnException: Ranks raised; the others were ended, their ``finally`` blocks ran.
            DeadlockError: Nothing can make progress; lists every rank.
            UsageError: There are fewer SIPs than ranks, or a spawn is under way.
        """
        if start_method not in _START_METHODS:
            raise UsageError(
                f"start_method must be one of {', '.join(_START_METHODS)}, but got {start_method!r}"
            )
        context = self.start(fn, args, nprocs)
        if not join:
            return context
        context.join()
        return None

    def start(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        nprocs: int,
        carrier_of: CarrierOf = lambda _: on_greenlet,
    ) -> SpawnContext:
        """Return the ranks of a :meth:`spawn`; they run when they are joined."""
        run = self._run
        self._check_starts("spawn was called")
        if any(rank.alive for rank in run.simulation.ranks):
            raise UsageError("a spawn is in progress; join() it before the next")
        self.join()
        if not isinstance(nprocs, int) or nprocs < 1:
            raise UsageError(f"nprocs must be at least 1, but got {nprocs!r}")
        if nprocs > run.machine.num_sips:
            raise UsageError(
                f"spawn was asked for {nprocs} ranks, but machine {run.machine.name} has "
                f"{run.machine.num_sips} SIPs; use --ranks {nprocs}, or "
                f"RuntimeContext(ranks={nprocs})"
            )
        if not callable(fn):
            raise UsageError(f"spawn needs a function to run, but got {fn!r}")
        if (kind := lazy_kind(fn)) is not None:
            raise UsageError(f"spawn was given {fn.__qualname__}, {kind}; {LAZY_HELP}")
        run.world_size = max(run.world_size, nprocs)
        context = SpawnContext(run, self._num_spawns)
        self._num_spawns += 1
        self._latest = context
        context.start(fn, tuple(args), nprocs, carrier_of)
        return context

    def add(self) -> StartedRank:
        """Return a rank to be started in addition to those started and not ended.

        Raises:
            UsageError: There is no SIP for it, a spawn is under way, or a rank of one asks for it.
        """
        latest = self._latest
        if not isinstance(latest, StartedRanks) or not latest.alive:
            self._check_starts("a process was started")
        if self._run.machine.spec.scenario.deaths:
            raise UsageError(
                "scenario.deaths is for ranks that are started together, by torchrun or spawn, but "
                "the program starts processes one by one"
            )
        if not isinstance(latest, StartedRanks) or not latest.alive:
            if any(rank.alive for rank in self._run.simulation.ranks):
                raise UsageError("a spawn is in progress; join() it before a process is started")
            self.join()
            latest = self._latest = StartedRanks(self._run, self._num_spawns)
            # Main may be a member of the groups that they make.
            self._run.main_state.spawn_id = self._num_spawns
            self._num_spawns += 1
        return latest.add()

    def _check_starts(self, what: str) -> None:
        run = self._run
        run.check_open("spawn")
        if run.simulation.running is not None:
            raise UsageError(f"{what} by rank {run.rank_state.rank}; only main can start ranks")


def _scaled(thresholds: tuple[int, int, int], nprocs: int) -> tuple[int, int, int]:
    return (thresholds[0] * nprocs, *thresholds[1:])


def _body(fn: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> Callable[[], object]:
    def run() -> None:
        refuse_lazy_result(fn(rank, *args), f"the function of rank {rank}")

    return run
