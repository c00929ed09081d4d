"""``multiprocessing.Process``: a worker of a rank is a thread of it (ADR-0115), or it is a rank."""

from __future__ import annotations

import multiprocessing.context
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures.process import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_start_method
from multiprocessing import process as processes
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from kernbench.clock import CtrlC
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.front.spawn import found_in, own_code, own_copy, take_values
from kernbench.torch_bridge.processes.process import HERE, Process, current, warn_once
from kernbench.torch_bridge.python.endings import live
from kernbench.torch_bridge.python.pipes import PipeEnd
from kernbench.torch_bridge.python.rank_threads import end_thread

if TYPE_CHECKING:
    from kernbench.torch_bridge.front.programs import Programs

_SHARES = (
    "a multiprocessing.Process that a rank starts runs as a thread of that rank and "
    "shares its memory"
)
_FIRST_PID = 2**22
"""Above the largest process id of Linux."""
_KEPT = ("_config", "_popen", "_Popen")
"""Attributes of a process that are not the program's; its key must not be copied."""
_start: Any = BaseProcess.start
_make_pool = ProcessPoolExecutor.__init__
_children: set[BaseProcess] = vars(processes)["_children"]


def install(patches: Patches, programs: Programs) -> None:
    """Let ranks start workers, and processes without a group start ranks."""
    patches.set(BaseProcess, "start", lambda self: _start_process(self, programs))
    # The start method, which a program may set once.
    context: Any = multiprocessing.context._default_context
    patches.set(context, "_actual_context", context._actual_context)
    patches.set(processes, "_children", _ChildrenOfEach())
    patches.set(ProcessPoolExecutor, "__init__", _refuse_pool)


class _ChildrenOfEach:
    """Replaces the set of running children that ``multiprocessing`` keeps, per process."""

    @property
    def _own(self) -> set[BaseProcess]:
        process = HERE.process
        return _children if process is None or HERE.is_foreign else process.workers

    def __iter__(self) -> Iterator[BaseProcess]:
        return iter(self._own)

    def add(self, started: BaseProcess) -> None:
        self._own.add(started)

    def discard(self, started: BaseProcess) -> None:
        self._own.discard(started)


def _refuse_pool(self: Any, *args: Any, **kwargs: Any) -> None:
    """``ProcessPoolExecutor``, refused: it would wait for its workers on pipes."""
    if HERE.process is None or HERE.is_foreign:
        _make_pool(self, *args, **kwargs)
        return
    raise UnsupportedTorchError(
        "concurrent.futures.ProcessPoolExecutor in a simulated process: it would block outside of "
        "the simulation; use ThreadPoolExecutor"
    )


def _start_process(self: Any, programs: Programs) -> None:
    """``multiprocessing.Process.start``."""
    process = HERE.process
    if process is None or HERE.is_foreign:
        _start(self)
        return
    if process.world is not None and process.world.default_pg is not None:
        warn_once("workers", _SHARES)
        self._Popen = Worker
    elif process.rank_of_run is None and process.session.run.simulation.running is None:
        self._Popen = partial(RankProcess, programs)
    else:
        raise UnsupportedTorchError(
            f"{type(self).__name__}.start in rank {process.rank}, which belongs to no group: what "
            "it starts would be a rank outside of its world; start ranks on the program's main "
            "thread, before any other, or work in threads"
        )
    _start(self)


class _Started:
    """A started process, with the interface of ``multiprocessing.popen_fork.Popen``."""

    sentinel = -1

    def __init__(self) -> None:
        self.returncode: int | None = None

    def run(self, child: BaseProcess, work: Callable[[], object]) -> None:
        """Run ``work``, and set the exit status by how it ends."""
        code = 1
        try:
            work()
            code = 0
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                code = end.code or 0
            else:
                print(end.code, file=sys.stderr)
        except CtrlC:
            raise
        except BaseException:
            print(f"Process {child.name}:", file=sys.stderr)
            traceback.print_exc()
        finally:
            self.end(code)

    def end(self, code: int) -> None:
        """Set the exit status, unless it is set."""
        if self.returncode is None:
            self.returncode = code

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        if self.returncode is None and HERE.process is not None:
            current().host.glance("multiprocessing.Process.is_alive")
        return self.returncode

    def terminate(self) -> None:
        """Abort it where it waits."""
        self._kill(signal.SIGTERM)

    def kill(self) -> None:
        """Abort it where it waits."""
        self._kill(signal.SIGKILL)

    def _kill(self, number: signal.Signals) -> None:
        if self.returncode is None:
            self.end(-number)
            self.cut_off()

    def cut_off(self) -> None:
        """Abort it where it waits, whatever its status."""
        raise NotImplementedError

    def close(self) -> None:
        """Accept it: there is nothing to release."""


class Worker(_Started):
    """A worker process of a rank: a thread of it."""

    def __init__(self, started: BaseProcess) -> None:
        super().__init__()
        # ``start`` deletes the target and arguments of the process that was started.
        child = object.__new__(type(started))
        child.__dict__.update(started.__dict__)
        self.pid = os.getpid()
        self._thread = threading.Thread(
            target=lambda: self.run(child, child.run), name=started.name, daemon=started.daemon
        )
        self._thread.start()

    def wait(self, timeout: float | None = None) -> int | None:
        """Return its exit status when it has ended, None if it has not in time."""
        self._thread.join(timeout)
        return self.returncode

    def cut_off(self) -> None:
        end_thread(self._thread)


class RankProcess(_Started):
    """A process started by one without a group: a rank of the run (ADR-0101)."""

    def __init__(self, programs: Programs, started: BaseProcess) -> None:
        super().__init__()
        session = current().session
        # No real process has this id, so that a signal cannot reach one.
        self.pid = _FIRST_PID + next(session.pids)
        kept = {name: started.__dict__[name] for name in started.__dict__ if name in _KEPT}
        given = own_copy({n: v for n, v in started.__dict__.items() if n not in _KEPT}) | kept
        forks = getattr(started, "_start_method", None) or get_start_method()
        parent = vars(sys.modules["__main__"])

        def work() -> None:
            child = object.__new__(own_code(type(started), programs))
            child.__dict__.update(given)
            if given["_target"] is not None:
                child.__dict__["_target"] = own_code(given["_target"], programs)
            if forks == "fork":
                take_values(parent)
            child.run()

        def live_as(process: Process) -> None:
            self.run(started, lambda: live(process, work))
            for end in found_in(given, lambda each: isinstance(each, PipeEnd)):
                end.close()

        self._rank = programs.start_one(live_as)

    def wait(self, timeout: float | None = None) -> int | None:
        """Return its exit status when it has ended, None if it has not in time."""
        current().host.catch_up()
        self._rank.wait(None if timeout is None else int(timeout * 10**12))
        return self.returncode

    def poll(self) -> int | None:
        found = super().poll()
        if found is not None:
            # The remaining work of it costs no time: another process may need its device.
            self._rank.wait()
        return found

    def cut_off(self) -> None:
        self._rank.end()
