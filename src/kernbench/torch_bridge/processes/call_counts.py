"""Counts the Python calls of a process's threads; imports are left out."""

from __future__ import annotations

import gc
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from kernbench.clock import Simulation
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import Process
from kernbench.torch_bridge.processes.python_calls import (
    FRAMES_OF_FUNCTION,
    HAS_MONITORING,
    IN_THREAD,
    MONITOR,
    PythonCalls,
    ThreadCalls,
)

_Importing: Any = sys.modules["_frozen_importlib"]._ModuleLockManager
_getprofile = sys.getprofile
_UNSEEN = "_unseen_by_counts"
"""The attribute of a function that is left out already: that function."""


def install(patches: Patches, simulation: Simulation) -> None:
    """Leave out imports, whose calls depend on compiled files, and the simulation's own work.

    Programs do not see the counter.
    """
    enter, leave = _Importing.__enter__, _Importing.__exit__

    def begin(self: Any) -> None:
        enter(self)
        self._paused = IN_THREAD.calls
        if self._paused is not None:
            self._paused.pause(FRAMES_OF_FUNCTION)

    def end(self: Any, *error: object) -> None:
        if self._paused is not None:
            self._paused.resume()
        leave(self, *error)

    def getprofile() -> Any:
        call, calls = _getprofile(), IN_THREAD.calls
        return None if calls is not None and calls.is_of(call) else call

    if HAS_MONITORING:
        MONITOR.begin()
        patches.on_close(MONITOR.end)
    patches.set_all(_Importing, __enter__=begin, __exit__=end)
    _leave_out_collections(patches)
    _sort_members(patches)
    patches.set(sys, "getprofile", getprofile)
    # On the class: a process has one simulation at a time, and the next one is another object.
    # A wait hands over to another rank's thread, which is no work of this rank's program.
    for name in ("run_until", "wait"):
        patches.set(type(simulation), name, unseen(getattr(type(simulation), name)))


def _leave_out_collections(patches: Patches) -> None:
    """Leave out what Python's garbage collector calls: it comes when it comes."""
    paused: list[ThreadCalls] = []

    def begins(phase: str, _: Any) -> None:
        calls = IN_THREAD.calls
        # Where nothing is counted it must not begin to be, only because somebody collects.
        if phase == "start" and calls is not None and calls.is_counting:
            # One more than a function: asking whether it counts.
            calls.pause(FRAMES_OF_FUNCTION + 1)
            paused.append(calls)

    def ends(phase: str, _: Any) -> None:
        if phase == "stop" and paused:
            paused.pop().resume()

    # Around the callbacks of others, which are no calls of the program either.
    gc.callbacks.insert(0, begins)
    gc.callbacks.append(ends)
    for call in (begins, ends):
        patches.on_close(gc.callbacks.remove, call)


def _sort_members(patches: Patches) -> None:
    """Let checks against protocols look for members by name, until one is missing.

    Python has them in a set of names, whose order goes by the hash seed. The checks themselves
    look at the frames of their callers, and are left as they are.
    """
    names = "_get_protocol_attrs"
    find: Any = getattr(typing, names)

    def in_order(cls: type) -> list[str]:
        return sorted(find(cls))

    patches.set(typing, names, unseen(in_order, is_python=True))


def leave_out(
    patches: Patches, owner: Any, *, is_python: bool = False, is_whole: bool = False
) -> None:
    """Leave out the calls of functions and properties that the bridge has put into an owner.

    Otherwise these are C or C++, which no count sees; or functions of Python (``is_python``), each
    of which counts as one call. An owner may stand in for C as it is (``is_whole``).
    """
    for name, value in list(vars(owner).items()):
        if isinstance(value, (FunctionType, MethodType)) and (is_whole or _is_ours(value)):
            patches.set(owner, name, unseen(value, is_python=is_python))
        elif isinstance(value, staticmethod) and _is_ours(value.__func__):
            patches.set(owner, name, staticmethod(unseen(value.__func__, is_python=is_python)))
        elif isinstance(value, property) and (_is_ours(value.fget) or _is_ours(value.fset)):
            patches.set(owner, name, property(*map(_unseen_if_ours, (value.fget, value.fset))))


def _is_ours(function: Any) -> bool:
    is_ours = (getattr(function, "__module__", "") or "").startswith("kernbench.")
    return is_ours and getattr(function, _UNSEEN, None) is not function


def _unseen_if_ours(function: Any) -> Any:
    return unseen(function) if _is_ours(function) else function


def unseen(function: Any, *, is_python: bool = False) -> Any:
    """Return the same function, whose calls are not counted, or as one (``is_python``)."""
    num_own = FRAMES_OF_FUNCTION - is_python

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls = IN_THREAD.calls
        if calls is None:
            return function(*args, **kwargs)
        calls.of_process.asker = function
        calls.pause(num_own)
        try:
            return function(*args, **kwargs)
        finally:
            calls.resume()

    # Who wraps it takes over its attributes.
    vars(call)[_UNSEEN] = call
    return call


class Shared(NamedTuple):
    """What a process did once that each rank would have done."""

    num_calls: int = 0
    num_views: int = 0


def once_for_all(function: Callable[[], Any]) -> tuple[Any, Shared]:
    """Return what a function finds that is the same for all ranks, and what that took.

    The caller owes it for each rank that would do the same (:func:`owe_shared`), this one too.
    """
    outer = IN_THREAD.calls
    if outer is None:
        return function(), Shared()
    process, counted = outer.of_process, PythonCalls()
    outer.pause(0)
    inner = IN_THREAD.calls = ThreadCalls(counted)
    # The observer counts views for the process.
    num_views, process.num_views = process.num_views, 0
    inner.resume()
    try:
        result = function()
    finally:
        inner.pause(1)
        IN_THREAD.calls = outer
        own, process.num_views = process.num_views, num_views
        outer.resume()
    return result, Shared(counted.take(), own)


def owe_shared(shared: Shared) -> None:
    """Let the calling process take the time of what was done for all ranks."""
    calls = IN_THREAD.calls
    if calls is not None:
        calls.of_process.num_shared += shared.num_calls
        calls.of_process.num_views += shared.num_views


def in_cxx(function: Any, *args: Any) -> Any:
    """Call a function that the caller, itself a stand-in for C++, has in place of C++.

    Neither's calls are counted, and operations that the function calls are called by C++.
    """
    calls = IN_THREAD.calls
    if calls is None:
        return function(*args)
    process = calls.of_process
    before, process.is_in_cxx = process.is_in_cxx, True
    # The caller, too.
    calls.pause(FRAMES_OF_FUNCTION + 1)
    try:
        return function(*args)
    finally:
        process.is_in_cxx = before
        calls.resume()


@contextmanager
def counting_calls(process: Process) -> Iterator[None]:
    """Count the calls of the calling thread for its process, where its host takes time for them."""
    counted = process.host.calls
    if counted is None:
        yield
        return
    before = IN_THREAD.calls
    calls = IN_THREAD.calls = ThreadCalls(counted)
    calls.resume()
    try:
        yield
    finally:
        calls.pause(1)
        IN_THREAD.calls = before


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave out the calls of what a GPU build does not do in Python."""
    calls = IN_THREAD.calls
    if calls is None:
        yield
        return
    # Those of the context manager are as many again.
    calls.pause(2 * FRAMES_OF_FUNCTION)
    try:
        yield
    finally:
        calls.resume()
