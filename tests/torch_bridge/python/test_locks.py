"""Locks of libraries, of which each simulated process has its own."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.python.locks import _LockOfEach, _ReentrantLockOfEach  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


@pytest.mark.parametrize("kind", [_LockOfEach, _ReentrantLockOfEach])
def test_a_class_derived_from_the_type_of_a_lock_makes_locks(kind: Any) -> None:
    # As joblib does: `class LokyRLock(type(threading.RLock()))`.
    lock = type("Derived", (kind,), {})()
    assert lock.acquire(False)
    assert lock.acquire(False) == (kind is _ReentrantLockOfEach)
    if kind is _ReentrantLockOfEach:
        assert lock._recursion_count() == 2
        lock.release()
    lock.release()
    assert lock.acquire(False)


def test_a_pool_of_threads_works_in_a_simulated_process(tmp_path: Any) -> None:
    said = tmp_path / "said"
    simulated("process_state.py", "thread_pools", said)
    assert said.read_text() == "[0, 1, 4, 9, 16]"


@pytest.mark.parametrize(
    ("kind", "make"),
    [(_LockOfEach, threading.Lock), (_ReentrantLockOfEach, threading._PyRLock)],  # type: ignore[attr-defined]
)
def test_a_forked_process_finds_a_librarys_lock_free(kind: Any, make: Any) -> None:
    lock = kind(make)
    # As when a thread holds it that the child does not have.
    holder = threading.Thread(target=lock.acquire)
    holder.start()
    holder.join()
    assert not lock.acquire(False)
    # What ``logging`` calls in a forked process, for the locks of its handlers.
    lock._at_fork_reinit()
    assert lock.acquire(False)
