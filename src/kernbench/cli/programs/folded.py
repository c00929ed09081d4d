"""Programs whose ranks are folded: one runs for all that do the same (ADR-0166)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kernbench.cli.options import FoldOptions
from kernbench.cli.programs.fold_checks import (
    axes_of_more,
    chosen,
    failed,
    ranks_named_in,
    verdict,
)
from kernbench.cli.programs.reporting import run_and_report
from kernbench.clock import listed
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.outputs import Outputs
    from kernbench.retiming import RankWork
    from kernbench.runtime_api import Folding, RankAxis, RuntimeContext, Timetable

MakeContext = Callable[..., "RuntimeContext"]
"""Makes a run; with ``is_watched`` one that records lines and memory."""
Work = Callable[["RuntimeContext"], int]
Axes = tuple["RankAxis", ...]
Ask = Callable[..., Any]
T = TypeVar("T")
MOST_TRIED = 128
"""Up to how many ranks a program runs twice, so that times are those of all ranks."""


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


class WatchedRun(NamedTuple):
    """A run of a program whose output nobody saw."""

    axes: Axes
    """Along which its ranks differ: some of them have turned out while it ran."""
    works: dict[int, RankWork]
    groups: list[tuple[int, ...]]
    """The groups in which its ranks called collectives."""
    placements: Timetable | None
    """When these run with all ranks; None: not known."""
    why_not: str
    calls: dict[int, deque[int]]
    """How many calls of Python its ranks made."""


class _Folder:
    """Runs a program with some of its ranks."""

    def __init__(self, make_context: MakeContext, num_ranks: int, work: Work) -> None:
        self._make_context, self._num_ranks, self._work = make_context, num_ranks, work
        self._folding: Folding | None = None
        """The folding of the latest run."""

    def context(self, axes: Axes, base: int = 0, *, is_watched: bool = False) -> RuntimeContext:
        """Return a run with one rank for each place on the axes."""
        from kernbench.runtime_api import Folding

        context = self._make_context(is_watched=is_watched)
        self._folding = Folding(self._num_ranks, axes, base)
        self._folding.begin(context.run)
        return context

    def watched(self, axes: Axes, base: int, plays: bool) -> WatchedRun | RankAxis:
        """Return what ranks did, and if it ``plays`` that with all ranks, when collectives ran.

        Returns the axis along which more ranks have to run, if that turns out.
        """
        from kernbench.retiming import groups_of, placements_of_all, work_of_ranks

        context = self.context(axes, base, is_watched=True)
        context.keep_actions(with_sites=True)
        try:
            with context:
                self._work(context)
        except Exception:
            if self._folding is None or self._folding.wanted is None:
                raise
            return self._folding.wanted
        folding = context.run.folding
        assert folding is not None
        placements, why_not = None, ""
        if plays and not folding.is_exact:
            try:
                placements = placements_of_all(context)
            except UsageError as error:
                why_not = str(error)
        return WatchedRun(
            axes,
            work_of_ranks(context),
            groups_of(context),
            placements,
            why_not,
            folding.calls.numbers,
        )

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
    is_usage: bool = False
    """Whether it is what cannot be folded, rather than a mistake."""


def run_ranks(
    make_context: MakeContext,
    num_ranks: int,
    work: Work,
    options: FoldOptions,
    outputs: Outputs,
    code: CodeType | None = None,
) -> int:
    """Run a program with all ranks, or folded if that is asked for; return its exit status.

    ``code`` is the program's, which may name ranks.
    """

    def report(context: RuntimeContext) -> int:
        return run_and_report(context, options, outputs, partial(work, context))

    if options.is_folded:
        named = ranks_named_in(code) if code is not None and options.fold_check else frozenset()
        return _run_folded(make_context, num_ranks, options, work, report, named)
    return report(make_context())


def _run_folded(
    make_context: MakeContext,
    num_ranks: int,
    options: FoldOptions,
    work: Work,
    report: Work,
    named: frozenset[int],
) -> int:
    """Run a program with as few ranks as stand for all, and report; return its exit status.

    Which those are turns out while it runs: ranks that send to each other differ. Then it runs
    again, with one rank for each of them. Up to :data:`MOST_TRIED` ranks all of that, and when
    collectives run with all ranks, is found in a process of its own before, unless the program is
    to run once.
    """
    folder, num_checks = _Folder(make_context, num_ranks, work), options.fold_check
    is_tried = options.fold_bound and num_ranks <= MOST_TRIED
    with _elsewhere(folder) if num_checks or is_tried else contextlib.nullcontext(None) as other:
        tried: WatchedRun | Failed | None = None
        if is_tried and other is not None:
            # What fails there fails here, too, where it is seen.
            tried = _watched(other, (), 0, plays=True)
        known = tried if isinstance(tried, WatchedRun) else None
        found_axes = () if known is None else known.axes

        def report_on(axes: Axes) -> int:
            if axes != found_axes:
                count = len(Folding(num_ranks, axes).running)
                print(f"folding: starts again with {count} of {num_ranks} ranks", file=sys.stderr)
            context = folder.context(axes)
            folding = context.run.folding
            assert folding is not None
            if known is not None:
                folding.placements, folding.why_not = known.placements, known.why_not
                folding.calls.know(known.calls)
            elif isinstance(tried, Failed):
                folding.why_not = f"the program failed when it ran unseen ({tried.why})"
            elif options.fold_bound:
                folding.why_not = f"{num_ranks:,} ranks are more than {MOST_TRIED}"
            else:
                folding.why_not = "--no-fold-bound lets the program run once"
            check = _Check(folding, known, other, context.run.machine)
            fails: list[bool] = []

            def checked() -> list[str]:
                if options.fold_bound and folding.has_host_times and known is not None:
                    check.measure_libraries()
                if not num_checks:
                    return []
                lines, is_same_work = check.compare(num_checks, named)
                fails.append(not is_same_work)
                return lines

            # Before what the folding says of its times.
            context.run.remarks.insert(0, checked)
            status = report(context)
            return status or int(any(fails))

        from kernbench.runtime_api import Folding

        return folder.split(report_on, found_axes)[1]


def _watched(other: Ask, axes: Axes, base: int, *, plays: bool = False) -> WatchedRun | Failed:
    """Run a program unseen, each time that more ranks have to run in a process of its own."""
    while True:
        watched_run: WatchedRun | Failed | RankAxis = other("watched", axes, base, plays)
        if isinstance(watched_run, (WatchedRun, Failed)):
            return watched_run
        axes = (*axes, watched_run)


class _Check:
    """Runs other ranks of a program, where nothing has run before, and compares them."""

    def __init__(
        self, folding: Folding, known: WatchedRun | None, other: Ask | None, machine: Machine
    ) -> None:
        self._folding, self._known, self._other = folding, known, other
        self._per_node = min(machine.sips_per_node, machine.num_sips // machine.num_hosts)
        host = machine.spec.host
        self._call_ps = 0 if host is None else round(host.python_call_us * 10**6)

    def measure_libraries(self) -> None:
        """Find how much Python libraries run once per process, from a few ranks that share one.

        Each of them alone has run it; together they run it once. A rank of these that does
        something else is noted.
        """
        from kernbench.retiming import first_difference, other_calls
        from kernbench.runtime_api import Folding

        folding, known = self._folding, self._known
        assert known is not None
        assert self._other is not None
        axes = axes_of_more(known.axes, known.groups, folding.num_ranks)
        if not axes:
            return
        pair = _watched(self._other, (*known.axes, *axes), 0)
        if isinstance(pair, Failed):
            if not pair.is_usage:
                ranks = listed(list(Folding(folding.num_ranks, (*known.axes, *axes)).running))
                folding.differing = f"with {ranks} the program failed: {pair.why}"
            return
        for rank, work in pair.works.items():
            runs = folding.representative(rank)
            differs = first_difference(known.works[runs], work, rank=runs)
            if differs is not None and differs.is_of_work:
                folding.differing = f"rank {rank} does not do what rank {runs} does: {differs.text}"
                return
        num_calls = sum(
            other_calls(
                work,
                [pair.works[rank] for rank in pair.works if folding.representative(rank) == runs],
            )
            for runs, work in known.works.items()
        )
        folding.once_ps = num_calls * self._call_ps

    def compare(self, num_checks: int, named: frozenset[int]) -> tuple[list[str], bool]:
        """Return what a check of so many other ranks says, and whether they do the same work."""
        folding = self._folding
        known = self._known
        if known is None or known.axes != folding.axes:
            known = self._watched(0)
        bases, covers = chosen(folding, known.groups, self._per_node, num_checks, named)
        if not bases:
            return [], True
        others: dict[int, RankWork] = {}
        for base in bases:
            others |= self._watched(base).works
        folding.num_checked = len(others)
        triple = verdict(folding, known.works, others)
        folding.is_alike = triple.is_same_time
        lines = triple.lines
        num_others = folding.num_ranks - len(folding.running)
        if len(others) < num_others:
            lines.append(
                f"fold check: {len(others)} of {num_others:,} other ranks ran; with those that ran "
                f"for them they are of {covers}"
            )
        return lines, triple.is_same_work

    def _watched(self, base: int) -> WatchedRun:
        assert self._other is not None
        pair = _watched(self._other, self._folding.axes, base)
        if isinstance(pair, Failed):
            raise failed(base, pair.why)
        return pair


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

    def answer(method: str, *value: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            try:
                theirs.send(getattr(folder, method)(*value))
            except Exception as error:
                # Of a group of exceptions the first one says what happened.
                while isinstance(error, ExceptionGroup):
                    error = error.exceptions[0]
                why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                theirs.send(Failed(why, isinstance(error, UsageError)))
        # What a run leaves behind is not worth the time to clean up.
        os._exit(0)

    server = forks.Process(target=serve, daemon=False)
    server.start()

    def ask(*asked: Any) -> Any:
        ours.send(asked)
        return ours.recv()

    try:
        yield ask
        ours.send(None)
    except BaseException:
        server.terminate()
        raise
    finally:
        server.join()


def _end(child: Any) -> None:
    """End a process and its child, which nobody waits for any more."""
    child.kill()
    os._exit(1)
