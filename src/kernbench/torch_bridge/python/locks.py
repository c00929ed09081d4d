"""Locks of simulated processes: waiting for one yields to the other ranks.

Exactly one thread runs at a time. A thread that blocked in the operating system for a lock held by
a parked thread would never wake; so locks that programs make during a run wait in simulated time,
and so does everything in ``threading`` and ``queue`` that is built of them.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from kernbench.clock import Handle, Simulation, Timer
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE

_allocate: Any = threading._allocate_lock  # type: ignore[attr-defined]
_PyRLock: Any = threading._PyRLock  # type: ignore[attr-defined]
_PS_PER_S = 10**12


class _LockWait(Handle):
    """Ends when the lock may be free, or at the timeout."""

    def __init__(self, simulation: Simulation, timeout_s: float, label: str) -> None:
        super().__init__(simulation.env, label)
        self._simulation = simulation
        self._timer: Timer | None = None
        if timeout_s >= 0:
            self._timer = simulation.idling.timer(int(timeout_s * _PS_PER_S), self.label)
            self._timer.when_done(lambda _: self.wake())
        self.is_over = False

    def wake(self) -> None:
        """Resume whoever waits, to try again."""
        if not self.is_over:
            self.is_over = True
            self.end_after(0)

    def forget(self) -> None:
        """Cancel the timeout, so that the clock need not advance to it."""
        if self._timer is not None and not self._timer.done:
            self._simulation.idling.cancel(self._timer)


class WaitingLock:
    """``threading.Lock`` for threads of simulated processes; for other threads, a real lock."""

    label = "a lock of another thread"
    """How errors name a wait for it."""

    def __init__(self) -> None:
        self._lock = _allocate()
        self._waits: deque[_LockWait] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(False):
            return True
        # No other thread runs meanwhile, so that a try without a timeout has failed.
        if not blocking or timeout == 0:
            return False
        process = HERE.process
        if process is None or HERE.is_foreign:
            return bool(self._lock.acquire(blocking, timeout))
        simulation = process.session.run.simulation
        end_ps = simulation.now_ps + int(timeout * _PS_PER_S)
        while True:
            left_s = -1.0 if timeout < 0 else max(end_ps - simulation.now_ps, 0) / _PS_PER_S
            wait = _LockWait(simulation, left_s, self.label)
            self._waits.append(wait)
            try:
                simulation.wait(wait)
            finally:
                wait.forget()
                if wait in self._waits:
                    self._waits.remove(wait)
            if self._lock.acquire(False):
                return True
            if timeout >= 0 and simulation.now_ps >= end_ps:
                return False

    def release(self) -> None:
        self._lock.release()
        if self._waits:
            self._waits.popleft().wake()

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()


class _LockOfEach:
    """A lock that a shared library made when it was imported: each process has its own.

    A rank that holds it may wait for another rank, which as a real process would have its own.
    """

    def __init__(self, make: Callable[[], Any] | None = None) -> None:
        # Without: of a class that a library derives from the type of its lock, as joblib does.
        self._make = make = self._default if make is None else make
        self._locks: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._elsewhere = make()

    @staticmethod
    def _default() -> Any:
        return WaitingLock()

    @property
    def _own(self) -> Any:
        process = HERE.process
        if process is None:
            return self._elsewhere
        lock = self._locks.get(process)
        if lock is None:
            lock = self._locks[process] = self._make()
        return lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return bool(self._own.acquire(blocking, timeout))

    def release(self) -> None:
        self._own.release()

    def locked(self) -> bool:
        return bool(self._own.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        # Without it ``logging``, some of whose handlers have such a lock, leaves its own taken.
        for item in (self._elsewhere, *self._locks.values()):
            item._at_fork_reinit()


class _ReentrantLockOfEach(_LockOfEach):
    """A reentrant one, with the methods that ``threading.Condition`` needs."""

    @staticmethod
    def _default() -> Any:
        return _PyRLock()

    def _recursion_count(self) -> int:
        return int(self._own._recursion_count())

    def _is_owned(self) -> bool:
        return bool(self._own._is_owned())

    def _release_save(self) -> Any:
        return self._own._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._own._acquire_restore(state)


class SimulatedLock(WaitingLock):
    """``threading.Lock``."""

    def __new__(cls) -> Any:
        return _LockOfEach(WaitingLock) if HERE.is_importing else super().__new__(cls)


def _reentrant_lock() -> Any:
    """``threading.RLock``."""
    return _ReentrantLockOfEach(_PyRLock) if HERE.is_importing else _PyRLock()


IN_C = (WaitingLock, _LockOfEach, _ReentrantLockOfEach)
"""Classes whose methods are functions of C where nothing is simulated."""
OF_PYTHON = (_PyRLock, queue._PySimpleQueue)  # type: ignore[attr-defined]
"""The same, of Python's library, which has them for interpreters without the ones of C."""

BARS = "tqdm.std"
"""PyTorch imports it before any run, so that its locks are real ones."""


def patch_bars(module: ModuleType, patches: Patches) -> None:
    """Let each process have the locks under which it draws progress bars."""
    lock = module.TqdmDefaultWriteLock
    patches.set_all(lock, {name: _ReentrantLockOfEach(_PyRLock) for name in ("th_lock", "mp_lock")})
    patches.set(module.tqdm, "_lock", lock())


def _is_set(event: threading.Event) -> bool:
    """``threading.Event.is_set``: yields if it is not set."""
    if not event._flag:  # type: ignore[attr-defined]
        process = HERE.process
        if process is not None and not HERE.is_foreign:
            process.host.glance("Event.is_set")
    return bool(event._flag)  # type: ignore[attr-defined]


def install(patches: Patches) -> None:
    """Let everything that programs build from locks yield to the other ranks."""
    patches.set_all(
        threading,
        _allocate_lock=SimulatedLock,
        Lock=SimulatedLock,
        _CRLock=None,
        RLock=_reentrant_lock,
    )
    patches.set_all(threading.Event, is_set=_is_set, isSet=_is_set)
    patches.set(queue, "SimpleQueue", OF_PYTHON[1])
