"""``multiprocessing.Process`` of a rank: a worker runs as one of the rank's threads (ADR-0115)."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures.process import ProcessPoolExecutor
from multiprocessing import process as processes
from multiprocessing.process import BaseProcess
from typing import Any

from kernbench.sim_engine import CtrlC
from kernbench.torch_bridge.patches import Patches
from kernbench.torch_bridge.process import HERE, current, warn_once
from kernbench.torch_bridge.refusals import UnsupportedTorchError
from kernbench.torch_bridge.strands import end_thread

_SHARES = (
    "a multiprocessing.Process that a rank starts runs as a thread of it: what it changes, the "
    "rank sees"
)
_start: Any = BaseProcess.start
_make_pool = ProcessPoolExecutor.__init__
_children: set[BaseProcess] = vars(processes)["_children"]


def install(patches: Patches) -> None:
    """Let ranks have workers."""
    patches.set(BaseProcess, "start", _start_worker)
    patches.set(processes, "_children", _ChildrenOfEach())
    patches.set(ProcessPoolExecutor, "__init__", _refuse_pool)


class _ChildrenOfEach:
    """Stands for the set in which ``multiprocessing`` keeps what was started and has not ended."""

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
    """``ProcessPoolExecutor``, which waits for its workers at pipes."""
    if HERE.process is None or HERE.is_foreign:
        _make_pool(self, *args, **kwargs)
        return
    raise UnsupportedTorchError(
        "concurrent.futures.ProcessPoolExecutor in a simulated process: it would wait outside of "
        "the simulation; use ThreadPoolExecutor"
    )


def _start_worker(self: Any) -> None:
    """``multiprocessing.Process.start``."""
    process = HERE.process
    if process is None or HERE.is_foreign:
        _start(self)
        return
    if process.world is None or process.world.default_pg is None:
        raise UnsupportedTorchError(
            f"{type(self).__name__}.start in a simulated process that belongs to no group: what it "
            "starts would be a rank outside of the simulation; start ranks with "
            "torch.multiprocessing.spawn or --nproc-per-node, or work in threads"
        )
    warn_once("workers", _SHARES)
    self._Popen = Worker
    _start(self)


class Worker:
    """Stands for what ``multiprocessing`` keeps of a process that it has started."""

    sentinel = -1

    def __init__(self, started: BaseProcess) -> None:
        # Whoever starts a process forgets what it is to do.
        child = object.__new__(type(started))
        child.__dict__.update(started.__dict__)
        self.pid = os.getpid()
        self.returncode: int | None = None
        self._thread = threading.Thread(
            target=self._run, args=(child,), name=started.name, daemon=started.daemon
        )
        self._thread.start()

    def _run(self, child: BaseProcess) -> None:
        code = 1
        try:
            child.run()
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
            self._end(code)

    def _end(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        if self.returncode is None and HERE.process is not None:
            current().host.glance("multiprocessing.Process.is_alive")
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Return its exit status when it has ended, None if it has not in time."""
        self._thread.join(timeout)
        return self.returncode

    def terminate(self) -> None:
        """End it where it waits."""
        self._kill(signal.SIGTERM)

    def kill(self) -> None:
        """End it where it waits."""
        self._kill(signal.SIGKILL)

    def _kill(self, number: signal.Signals) -> None:
        if self.returncode is None:
            self._end(-number)
            end_thread(self._thread)

    def close(self) -> None:
        """Accept it: it holds nothing."""
