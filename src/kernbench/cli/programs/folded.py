"""Programs whose ranks are folded: one runs for all that do the same (ADR-0166)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.op_log import OpLog
    from kernbench.runtime_api import Folding, RankAxis, RuntimeContext

MakeContext = Callable[[], "RuntimeContext"]
Work = Callable[["RuntimeContext"], int]


def check_folding(fold: bool, num_checks: int, has_data: bool, num_ranks: int) -> None:
    """Refuse what cannot be folded.

    Raises:
        UsageError: With data each rank computes its own; one rank is not folded; or ranks are to
            be checked that are not folded.
    """
    if not fold:
        if num_checks:
            raise UsageError("--fold-check compares ranks that --fold leaves out; pass --fold, too")
        return
    if has_data:
        raise UsageError(
            "--fold runs one rank for many, which have data of their own: add --no-data"
        )
    if num_ranks == 1:
        raise UsageError(
            "--fold needs ranks: pass --nproc-per-node, and --nnodes for several nodes"
        )


class Command(NamedTuple):
    """A command of one rank."""

    name: str
    end_ps: int


Found = dict[int, list[Command]]
"""The commands of each rank that ran, in the order in which they ended."""


def run_folded(
    make_context: MakeContext, num_ranks: int, num_checks: int, work: Work, report: Work
) -> int:
    """Run a program with as few ranks as stand for all, and report; return its exit status.

    Which those are turns out while it runs: ranks that send to each other differ. Then it runs
    again, with one rank for each of them.
    """
    from kernbench.runtime_api import Folding

    def folded(axes: tuple[RankAxis, ...], base: int = 0) -> RuntimeContext:
        context = make_context()
        context.run.folding = folding = Folding(num_ranks, axes, base)
        context.op_log.running = folding.running
        context.run.remarks.append(folding.remarks)
        return context

    def run_other(axes: tuple[RankAxis, ...], base: int) -> Found:
        context = folded(axes, base)
        with context:
            work(context)
        return _commands(context.op_log)

    axes: tuple[RankAxis, ...] = ()
    with _elsewhere(run_other) if num_checks else contextlib.nullcontext(run_other) as other:
        while True:
            context = folded(axes)
            folding = context.run.folding
            assert folding is not None

            def checked(folding: Folding = folding, log: OpLog = context.op_log) -> list[str]:
                bases = _chosen(folding, num_checks)
                if not bases:
                    return []
                # A run that began again had some of what libraries do once behind it.
                known = other(folding.axes, 0) if folding.axes else _commands(log)
                return [compared(folding, known, other(folding.axes, base)) for base in bases]

            context.run.remarks.append(checked)
            try:
                return report(context)
            except Exception:
                if folding.wanted is None:
                    raise
            axes = (*axes, folding.wanted)
            count = len(Folding(num_ranks, axes).running)
            print(f"folding: starts again with {count} of {num_ranks} ranks", file=sys.stderr)


def _chosen(folding: Folding, num_checks: int) -> list[int]:
    """Return ranks that others have run for; the same ones in every run."""
    others = sorted(set(range(folding.num_ranks)) - set(folding.running))
    return sorted(random.Random(0).sample(others, min(num_checks, len(others))))


@contextmanager
def _elsewhere(run: Callable[..., Found]) -> Iterator[Callable[..., Found]]:
    """Give a function that runs a program in a process where nothing has run before.

    What libraries do once per process takes time there, too.
    """
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe()

    def serve() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while (asked := theirs.recv()) is not None:
            child = forks.Process(target=answer, args=(asked,))
            child.start()
            child.join()
            if child.exitcode:
                theirs.send(f"it ended with status {child.exitcode}")

    def answer(asked: Sequence[Any]) -> None:
        with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            theirs.send(run(*asked))
        # What a run leaves behind is not worth the time to clean up.
        os._exit(0)

    server = forks.Process(target=serve, daemon=False)
    server.start()

    def ask(*asked: Any) -> Found:
        ours.send(asked)
        found = ours.recv()
        if isinstance(found, str):
            raise UsageError(
                f"--fold-check: with rank {asked[1]} in the place of rank 0 the program failed, "
                f"{found}; run it without --fold to see what that rank does"
            )
        return found  # type: ignore[no-any-return]

    try:
        yield ask
    finally:
        ours.send(None)
        server.join()


def compared(folding: Folding, known: Found, found: Found) -> str:
    """Return how far times of other ranks are from those of the ranks that ran for them."""
    from kernbench.report import format_ns, format_share

    worst_ps, end_ps, where = 0, 1, ""
    for peer, theirs in found.items():
        rank = folding.representative(peer)
        for index, (mine, its) in enumerate(zip_longest(known[rank], theirs)):
            if mine is None or its is None or mine.name != its.name:
                return (
                    f"fold check: rank {peer} does not do what rank {rank} does, which ran for it: "
                    f"command {index} is {_name_of(its)} instead of {_name_of(mine)}; run it "
                    "without --fold"
                )
            if abs(its.end_ps - mine.end_ps) >= worst_ps:
                worst_ps, end_ps = abs(its.end_ps - mine.end_ps), max(mine.end_ps, 1)
                where = f"at command {index}, {mine.name}"
    ranks = " and ".join(f"rank {rank}" for rank in found)
    if not worst_ps:
        return f"fold check: {ranks} took as long as what ran for it, to the picosecond"
    return (
        f"fold check: {ranks} did what ran for it did; times differ by at most "
        f"{format_ns(worst_ps / 1000)} ({format_share(worst_ps, end_ps)}), {where}"
    )


def _name_of(command: Command | None) -> str:
    return "nothing" if command is None else command.name


def _commands(log: OpLog) -> Found:
    found: Found = {}
    for each in log.instances:
        for rank, end_ps in zip(each.ranks, each.ends_ps, strict=True):
            found.setdefault(rank, []).append(Command(each.template.name, end_ps))
    return found
