"""Threads of simulated processes: each takes turns with its rank's main thread."""

from __future__ import annotations

import concurrent.futures.thread as executors
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from kernbench.clock import CtrlC, on_thread
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import uncounted
from kernbench.torch_bridge.processes.process import HERE, Process, RankThread, ThreadState
from kernbench.torch_bridge.python.locks import SimulatedLock

_start = threading.Thread.start
_join = threading.Thread.join
_is_alive = threading.Thread.is_alive
_main_thread, _enumerate = threading.main_thread, threading.enumerate


Inside = Callable[[Process], AbstractContextManager[Any]]
"""The context in which all threads of a process run their code."""


class RankThreads:
    """Starts and joins the threads of simulated processes."""

    def __init__(
        self, inside: Inside, before: Callable[[Process], None], after: Callable[[], None]
    ) -> None:
        self._inside = inside
        self._before = before
        self._after = after

    def install(self, patches: Patches) -> None:
        """Let threads that are started in a simulated process belong to it."""
        patches.set(executors, "_shutdown", False)
        patches.set_all(
            threading.Thread,
            start=lambda thread: self._start(thread),
            join=_join_rank_thread,
            is_alive=_rank_thread_is_alive,
        )
        patches.set(threading, "main_thread", _main_thread_here)
        patches.set(threading, "enumerate", _threads_here)
        patches.set(threading, "active_count", lambda: len(_threads_here()))

    def _start(self, thread: threading.Thread) -> None:
        process = HERE.process
        if process is None or HERE.is_foreign:
            _start(thread)
            return
        started = RankThread(process, thread)
        process.threads.append(started)
        keeper = process.session.run.keeper
        if keeper is not None:
            keeper.refused["it starts threads or worker processes"] = None
        thread.__dict__["_kernbench_rank_thread"] = started
        simulation = process.session.run.simulation
        run = thread.run

        def body() -> None:
            HERE.process = process
            HERE.is_foreign = False
            show_daemon(thread, started.is_daemon)
            with self._inside(process):
                _run_as_thread(run, thread)

        def make(target: Callable[[], None]) -> threading.Thread:
            thread.run = target  # type: ignore[method-assign]
            return thread

        # CUDA's current device and streams are per thread.
        own = ThreadState(process.first_sip_id)

        def before() -> None:
            self._before(process)
            process.show(own)

        show_daemon(thread, True)

        def interrupted() -> None:
            simulation.call_soon(interrupt)

        carrier = on_thread(thread.name, before, make, interrupted, self._after)
        with starting():
            started.rank = simulation.start_thread(
                process.rank_of_run, body, started.ended, process.state, carrier
            )


def _main_thread_here() -> threading.Thread:
    """Return the thread that the calling process began with (``threading.main_thread``)."""
    process = HERE.process
    of_process = None if process is None or HERE.is_foreign else process.first_thread
    return of_process or _main_thread()


def _threads_here() -> list[threading.Thread]:
    """Return the threads of the calling process (``threading.enumerate``)."""
    process = HERE.process
    if process is None or HERE.is_foreign:
        return _enumerate()
    started = [thread.thread for thread in process.threads if not thread.end.done]
    return list(dict.fromkeys([_main_thread_here(), *started, threading.current_thread()]))


def show_daemon(thread: threading.Thread, is_daemon: bool) -> None:
    """Set whether a thread reports to be a daemon, which threads that it starts inherit.

    Really all are daemons, lest Python waits for them at its end; which ones the simulated process
    waits for is up to the program.
    """
    thread._daemonic = is_daemon  # type: ignore[attr-defined]


def join_all(process: Process) -> None:
    """Join the remaining threads of a process, as Python does at its end."""
    simulation = process.session.run.simulation
    # What executors check when Python ends; only those of this process may see it.
    executors._shutdown = True
    for started in list(process.threads):
        work = executors._threads_queues.get(started.thread)
        if work is not None:
            work.put(None)
    for started in list(process.threads):
        if not started.is_daemon or started.thread in executors._threads_queues:
            simulation.wait(started.end)


def end_daemons(process: Process) -> None:
    """Abort the daemon threads of a process."""
    simulation = process.session.run.simulation
    for started in list(process.threads):
        if started.rank is not None and started.rank.alive:
            started.rank.abort()
            simulation.wait(started.end)
    process.threads.clear()


def _run_as_thread(run: Callable[[], None], thread: threading.Thread) -> None:
    try:
        run()
    except (SystemExit, CtrlC):
        # Ctrl-C is passed on to main.
        return
    except BaseException:
        # An error ends only its thread: Python prints it and continues.
        kind, error, traceback = sys.exc_info()
        own = None if traceback is None else traceback.tb_next
        arguments = threading.ExceptHookArgs([kind, error, own, thread])
        threading.excepthook(arguments)


def interrupt() -> None:
    """End the run, as Ctrl-C in a thread does: Python hands signals to the main thread."""
    raise CtrlC


def _rank_thread_of(thread: threading.Thread) -> RankThread | None:
    rank_thread: RankThread | None = thread.__dict__.get("_kernbench_rank_thread")
    return rank_thread


def _join_rank_thread(thread: threading.Thread, timeout: float | None = None) -> None:
    started = _rank_thread_of(thread)
    if started is None or HERE.process is None or HERE.is_foreign:
        _join(thread, timeout)
        return
    if timeout is None:
        HERE.process.session.run.simulation.wait(started.end)
    elif not started.end.done:
        over = SimulatedLock()
        over.acquire()

        def release(_: object) -> None:
            if over.locked():
                over.release()

        started.end.when_done(release)
        over.acquire(timeout=max(timeout, 0))


def _rank_thread_is_alive(thread: threading.Thread) -> bool:
    started = _rank_thread_of(thread)
    if started is None:
        return _is_alive(thread)
    if not started.end.done and HERE.process is not None and not HERE.is_foreign:
        HERE.process.host.glance("Thread.is_alive")
    return not started.end.done


@contextmanager
def starting() -> Iterator[None]:
    """Wait as usual for a new thread to start: it reports that before it waits for its turn.

    Whether that is before somebody waits for it is up to the real machine, and so is what ``start``
    calls: it does not count.
    """
    before, HERE.is_foreign = HERE.is_foreign, True
    try:
        with uncounted():
            yield
    finally:
        HERE.is_foreign = before
