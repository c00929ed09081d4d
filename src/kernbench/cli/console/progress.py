"""A progress line on stderr, or a bar in a notebook, and notes on what takes long."""

from __future__ import annotations

import contextlib
import dis
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from types import FrameType
from typing import Any, TextIO

from kernbench.clock import Handle, Rank, Simulation, UserSite, is_of_program, user_site
from kernbench.interrupts import frame_of
from kernbench.notebooks import notebook, notebook_progress

SHOWN_AFTER_S = 1.0
_REFRESH_S = 0.2
_LOOK_S = 5.0
"""How often notes are asked for where nothing is drawn."""


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal; None is one that the shell has closed."""
    return stream is not None and not stream.closed and stream.isatty()


@contextmanager
def progress(
    describe: Callable[[], str],
    share: Callable[[], float] | None = None,
    note: Callable[[], str | None] | None = None,
) -> Iterator[None]:
    """Show ``describe()`` and the elapsed time while the block runs.

    Only if stderr is a terminal or this is a notebook, and only from :data:`SHOWN_AFTER_S` seconds
    on until the program calls ``breakpoint()``. The text is read
    from another thread: ``describe`` must only look at plain values, and so must ``share``, which
    says which part is done, from 0 to 1. ``note`` is called there, too: the lines that it returns
    go to stderr, whatever that is.
    """
    if notebook() is not None:
        with notebook_progress(describe, share):
            yield
        return
    ended = threading.Event()
    if is_terminal(sys.stderr):
        show = partial(_show, describe, share, note or _nothing, ended)
    elif note is not None and sys.stderr is not None:
        show = partial(_print_notes, note, sys.stderr, ended)
    else:
        yield
        return
    thread = threading.Thread(target=show, daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    hook = sys.breakpointhook

    def stop_for_debugger(*args: Any, **kwargs: Any) -> Any:
        """Remove the bar for good: the debugger owns the terminal now."""
        end()
        sys.breakpointhook = hook
        if hook is sys.__breakpointhook__ and "PYTHONBREAKPOINT" not in os.environ:
            import pdb

            # Python's own hook would stop in its caller, which is this function.
            return pdb.Pdb().set_trace(sys._getframe(1))
        return hook(*args, **kwargs)

    sys.breakpointhook = stop_for_debugger
    try:
        yield
    finally:
        if sys.breakpointhook is stop_for_debugger:
            sys.breakpointhook = hook
        end()


def _nothing() -> None:
    """Have nothing to note."""


def _print_notes(note: Callable[[], str | None], stream: TextIO, ended: threading.Event) -> None:
    while not ended.wait(_LOOK_S):
        line = note()
        if line is not None:
            # Whoever read it may have gone.
            with contextlib.suppress(OSError, ValueError):
                print(line, file=stream, flush=True)


def _show(
    describe: Callable[[], str],
    share: Callable[[], float] | None,
    note: Callable[[], str | None],
    ended: threading.Event,
) -> None:
    started_s = perf_counter()
    if ended.wait(SHOWN_AFTER_S):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    # How long a run will be is not known: its bar only moves.
    total = None if share is None else 1.0
    columns = (BarColumn(bar_width=20), TextColumn("{task.description}"))
    # Lines that the bench prints go above the bar, if both are on the terminal.
    both = is_terminal(sys.stdout)
    with Progress(
        *columns,
        console=Console(file=sys.stderr),
        transient=True,
        redirect_stdout=both,
        redirect_stderr=both,
    ) as bar:
        task = bar.add_task("", total=total)
        while not ended.wait(_REFRESH_S):
            elapsed_s = perf_counter() - started_s
            text = f"{elapsed_s:.0f} s  {describe()}"
            bar.update(task, description=text, completed=share() if share else None)
            line = note()
            if line is not None:
                bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


HELD_S = 60.0
"""A guess: longer than a turn of any program of the guides, shorter than patience."""
_TURN_LOOK_S = 10.0
_BETWEEN_CALLS = ("JUMP", "RESUME")
"""In names of instructions at which Python lets other threads run, besides in calls."""


class Turns:
    """Looks whose turn it is, from a thread that is none of the run's.

    It is made in the thread that drives the clock.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._driver = threading.get_ident()
        self._turn: tuple[Rank | None, Handle | None] = (None, None)
        self._since_s = self._looked_s = 0.0
        self._noted: set[UserSite] = set()

    def note(self) -> str | None:
        """Return what there is to say of the rank that runs; of each line of a program once.

        Looks are :data:`_TURN_LOOK_S` apart at least, however often it is called.
        """
        now_s = perf_counter()
        if now_s - self._looked_s < _TURN_LOOK_S:
            return None
        self._looked_s = now_s
        rank, (before, waited) = self._simulation.running, self._turn
        # A rank that gives way waits for another handle then.
        if rank is None or rank is not before or rank.waiting_for is not waited:
            self._turn = rank, None if rank is None else rank.waiting_for
            self._since_s = now_s
            return None
        if now_s - self._since_s < HELD_S or len(self._simulation.ranks) == 1:
            return None
        frame = rank.frame or frame_of(self._driver)
        if frame is None or _is_debugged(frame) or (site := user_site(frame)) in self._noted:
            return None
        self._noted.add(site)
        return (
            f"note: rank {rank.rank_id} has not given way for {now_s - self._since_s:.0f} s; it is "
            f"at {site}, {_doing(frame)}; other ranks run once it waits for one of them"
        )


def _doing(frame: FrameType) -> str:
    """Return what the innermost code does, as far as frames of Python show it."""
    code = frame.f_code
    if not is_of_program(code.co_filename):
        return f"in {frame.f_globals.get('__name__', '?')}.{code.co_qualname}"
    name = dis.opname[code.co_code[frame.f_lasti]]
    is_between = any(call in name for call in _BETWEEN_CALLS)
    return "in Python of its own" if is_between else "in a call there"


def _is_debugged(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "bdb":
            return True
        frame = frame.f_back
    return False
