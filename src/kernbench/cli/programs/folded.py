"""Programs whose ranks are folded: one runs for all that do the same (ADR-0166)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from kernbench.cli.programs.reporting import ReportOptions, run_and_report
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.op_log import OpLog
    from kernbench.outputs import Outputs
    from kernbench.runtime_api import Folding, RankAxis, RuntimeContext, Timetable

MakeContext = Callable[[], "RuntimeContext"]
Work = Callable[["RuntimeContext"], int]
Axes = tuple["RankAxis", ...]
Ask = Callable[..., Any]
T = TypeVar("T")
MOST_TRIED = 128
"""Up to how many ranks a program runs twice, so that times are those of all ranks."""


class FoldOptions(ReportOptions, Protocol):
    """What the command line says about folding, and about the report."""

    @property
    def fold(self) -> bool: ...

    @property
    def fold_check(self) -> int: ...


def is_folded(options: FoldOptions) -> bool:
    """Return whether one rank runs for many; to compare with others asks for it, too."""
    return options.fold or bool(options.fold_check)


def check_folding(has_data: bool, num_ranks: int, machine: Machine, options: str) -> None:
    """Refuse what cannot be folded; ``options`` ask for ranks.

    Raises:
        UsageError: With data each rank computes its own; one rank is not folded; or the machine's
            scenario lets ranks differ.
    """
    if has_data:
        raise UsageError(
            "--fold runs one rank for many, which have data of their own: add --no-data"
        )
    if machine.spec.scenario.differs_by_rank:
        raise UsageError(
            "--fold runs one rank for all that do the same in the same time, but by the scenario "
            "of the machine times differ (a slow device or link, jitter, a death): leave --fold "
            "or the scenario out"
        )
    if num_ranks == 1:
        raise UsageError(f"--fold needs ranks: pass {options}")


class Command(NamedTuple):
    """A command of one rank."""

    name: str
    end_ps: int


Found = dict[int, list[Command]]
"""The commands of each rank that ran, in the order in which they ended."""


class _Folder:
    """Runs a program with some of its ranks."""

    def __init__(self, make_context: MakeContext, num_ranks: int, work: Work) -> None:
        self._make_context, self._num_ranks, self._work = make_context, num_ranks, work
        self._folding: Folding | None = None
        """That of the latest run."""

    def context(self, axes: tuple[RankAxis, ...], base: int = 0) -> RuntimeContext:
        """Return a run with one rank for each place on the axes."""
        from kernbench.runtime_api import Folding

        context = self._make_context()
        self._folding = Folding(self._num_ranks, axes, base)
        self._folding.begin(context.run)
        return context

    def ran(self, axes: Axes, base: int = 0) -> RuntimeContext:
        """Return a run whose actions are kept, once the program has ended."""
        context = self.context(axes, base)
        context.keep_actions()
        with context:
            self._work(context)
        return context

    def commands(self, axes: Axes, base: int, peers: tuple[int, ...]) -> Found:
        """Return what ranks did if all do what those do that run with ``base``."""
        from kernbench.retime import play_all_ranks

        context = self.ran(axes, base)
        folding, log = context.run.folding, context.op_log
        assert folding is not None
        if not folding.is_exact and self._num_ranks <= MOST_TRIED:
            with contextlib.suppress(UsageError):
                log = play_all_ranks(context)[0]
        found = _commands(log)
        return {peer: found.get(peer) or found[folding.representative(peer)] for peer in peers}

    def tried(self, axes: tuple[RankAxis, ...]) -> Tried:
        """Return which ranks have to run, and when collectives run with all ranks."""
        from kernbench.retime import placements_of_all

        axes, context = self.split(self.ran, axes)
        folding = context.run.folding
        assert folding is not None
        if folding.is_exact:
            return Tried(axes, None, "")
        try:
            return Tried(axes, placements_of_all(context), "")
        except UsageError as error:
            return Tried(axes, None, str(error))

    def split(self, run: Callable[[Axes], T], axes: Axes) -> tuple[Axes, T]:
        """Run with more ranks, as often as some are found that have to; return what came of it."""
        while True:
            try:
                return axes, run(axes)
            except Exception:
                if self._folding is None or self._folding.wanted is None:
                    raise
                axes = (*axes, self._folding.wanted)


class Failed(NamedTuple):
    """A program that failed elsewhere."""

    why: str


class Comparison(NamedTuple):
    """What a check of ranks that others ran for has shown."""

    text: str
    is_same_work: bool
    is_same_time: bool


class Tried(NamedTuple):
    """What a run of a program whose output nobody saw has shown."""

    axes: Axes
    placements: Timetable | None
    why_not: str


def run_ranks(
    make_context: MakeContext, num_ranks: int, work: Work, options: FoldOptions, outputs: Outputs
) -> int:
    """Run a program with all ranks, or folded if that is asked for; return its exit status."""

    def report(context: RuntimeContext) -> int:
        return run_and_report(context, options, outputs, partial(work, context))

    if is_folded(options):
        return _run_folded(make_context, num_ranks, options.fold_check, work, report)
    return report(make_context())


def _run_folded(
    make_context: MakeContext, num_ranks: int, num_checks: int, work: Work, report: Work
) -> int:
    """Run a program with as few ranks as stand for all, and report; return its exit status.

    Which those are turns out while it runs: ranks that send to each other differ. Then it runs
    again, with one rank for each of them. Up to :data:`MOST_TRIED` ranks all of that, and when
    collectives run with all ranks, is found in a process of its own before.
    """
    folder = _Folder(make_context, num_ranks, work)
    is_tried = num_ranks <= MOST_TRIED
    tried = Tried((), None, f"{num_ranks:,} ranks are more than {MOST_TRIED}")
    with _elsewhere(folder) if num_checks or is_tried else contextlib.nullcontext(None) as other:
        if is_tried and other is not None:
            # What fails there fails here, too, where it is seen.
            found = other("tried", ())
            tried = Tried((), None, "") if isinstance(found, Failed) else found

        def report_on(axes: Axes) -> int:
            if axes != tried.axes:
                count = len(Folding(num_ranks, axes).running)
                print(f"folding: starts again with {count} of {num_ranks} ranks", file=sys.stderr)
            context = folder.context(axes)
            folding = context.run.folding
            assert folding is not None
            folding.placements, folding.why_not = tried.placements, tried.why_not

            def checked() -> list[str]:
                bases = _chosen(folding, num_checks)
                if not bases or other is None:
                    return []
                # Ranks that run together are one choice.
                chosen = {Folding(num_ranks, axes, base).running: base for base in bases}
                peers = {base: running for running, base in chosen.items()}
                others = set().union(*peers.values())
                folding.num_checked = len(others - set(folding.running))
                known = _of_other(other, axes, 0, tuple(others))
                found = [
                    compared(folding, known, _of_other(other, axes, base, peers[base]))
                    for base in peers
                ]
                fails.append(not all(each.is_same_work for each in found))
                folding.is_alike = all(each.is_same_time for each in found)
                return [each.text for each in found]

            fails: list[bool] = []
            # Before what the folding says of its times.
            context.run.remarks.insert(0, checked)
            status = report(context)
            return status or int(any(fails))

        from kernbench.runtime_api import Folding

        return folder.split(report_on, tried.axes)[1]


def _of_other(other: Ask, axes: Axes, base: int, peers: tuple[int, ...]) -> Found:
    found: Found | Failed = other("commands", axes, base, peers)
    if isinstance(found, Failed):
        raise UsageError(
            f"--fold-check: with rank {base} in the place of rank 0 the program failed "
            f"({found.why}); run it without --fold to see what that rank does"
        )
    return found


def _chosen(folding: Folding, num_checks: int) -> list[int]:
    """Return ranks that others have run for; the same ones in every run."""
    others = sorted(set(range(folding.num_ranks)) - set(folding.running))
    return sorted(random.Random(0).sample(others, min(num_checks, len(others))))


@contextmanager
def _elsewhere(folder: _Folder) -> Iterator[Ask]:
    """Give a function that calls a method of ``folder`` where nothing has run before.

    That is in a process of its own, without output: what libraries do once per process takes time
    there, too. It returns :class:`Failed` if that fails.
    """
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe()

    def serve() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while (asked := theirs.recv()) is not None:
            child = forks.Process(target=answer, args=asked)
            child.start()
            signal.signal(signal.SIGTERM, lambda *_, child=child: _end(child))
            child.join()
            if child.exitcode:
                theirs.send(Failed(f"it ended with status {child.exitcode}"))

    def answer(method: str, *given: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            try:
                theirs.send(getattr(folder, method)(*given))
            except Exception as error:
                # Of a group of exceptions the first one says what happened.
                while isinstance(error, ExceptionGroup):
                    error = error.exceptions[0]
                theirs.send(Failed(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"))
        # What a run leaves behind is not worth the time to clean up.
        os._exit(0)

    server = forks.Process(target=serve, daemon=False)
    server.start()

    def ask(*asked: Any) -> Any:
        ours.send(asked)
        return ours.recv()

    try:
        yield ask
    except BaseException:
        server.terminate()
        raise
    else:
        ours.send(None)
    finally:
        server.join()


def _end(child: Any) -> None:
    """End a process and its child, which nobody waits for any more."""
    child.kill()
    os._exit(1)


def compared(folding: Folding, known: Found, found: Found) -> Comparison:
    """Return how far times of other ranks are from those of the ranks that ran for them."""
    from kernbench.report import format_ns, format_share

    worst_ps, end_ps, where = 0, 1, ""
    for peer, theirs in found.items():
        rank = folding.representative(peer)
        for index, (mine, its) in enumerate(zip_longest(known[peer], theirs)):
            if mine is None or its is None or mine.name != its.name:
                return Comparison(
                    f"fold check: rank {peer} does not do what rank {rank} does, which ran for it: "
                    f"command {index} is {_name_of(its)} instead of {_name_of(mine)}; run it "
                    "without --fold",
                    is_same_work=False,
                    is_same_time=False,
                )
            if abs(its.end_ps - mine.end_ps) >= worst_ps:
                worst_ps, end_ps = abs(its.end_ps - mine.end_ps), max(mine.end_ps, 1)
                where = f"at command {index}, {mine.name}"
    ranks = " and ".join(f"rank {rank}" for rank in found)
    if not worst_ps:
        text = f"fold check: {ranks} took as long as what ran for it, to the picosecond"
        return Comparison(text, is_same_work=True, is_same_time=True)
    return Comparison(
        f"fold check: {ranks} did what ran for it did; times differ by at most "
        f"{format_ns(worst_ps / 1000)} ({format_share(worst_ps, end_ps)}), {where}",
        is_same_work=True,
        is_same_time=False,
    )


def _name_of(command: Command | None) -> str:
    return "nothing" if command is None else command.name


def _commands(log: OpLog) -> Found:
    found: Found = {}
    for each in log.instances:
        for rank, end_ps in zip(each.ranks, each.ends_ps, strict=True):
            found.setdefault(rank, []).append(Command(each.template.name, end_ps))
    return found
