"""What Python does at the end of a process, done for each simulated process (ADR-0114)."""

from __future__ import annotations

import atexit
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE, Process
from kernbench.torch_bridge.python.rank_threads import end_daemons, join_all
from kernbench.torch_bridge.python.sockets import close_all

_REGISTER, _UNREGISTER, _COUNT = atexit.register, atexit.unregister, atexit._ncallbacks
_register_of_threads: Any = threading._register_atexit  # type: ignore[attr-defined]
_finalize: Any = weakref.finalize
_next_index = _finalize._index_iter.__next__


class _IndexOf(int):
    """The index of a ``weakref.finalize``, which also records its process."""

    process: Process


class _Indices:
    """The counter from which ``weakref.finalize`` takes its indices."""

    def __next__(self) -> int:
        process = _registering()
        if process is None:
            return int(_next_index())
        index = _IndexOf(_next_index())
        index.process = process
        return index


def install(patches: Patches) -> None:
    """Call handlers of simulated processes at the end of their process."""
    patches.set_all(
        atexit,
        register=_register,
        unregister=_unregister,
        _clear=_clear,
        _run_exitfuncs=_run_handlers,
        _ncallbacks=_count,
    )
    patches.set(threading, "_register_atexit", _register_before_threads_end)
    if not _finalize._registered_with_atexit:
        # Otherwise the first finalizer would register this with the process that makes it.
        _REGISTER(_finalize._exitfunc)
        _finalize._registered_with_atexit = True
    patches.set(_finalize, "_index_iter", _Indices())


def live(process: Process, work: Callable[[], object]) -> None:
    """Run the work of a process, and then its handlers.

    A process that fails does not join its threads: they may wait for what it has not done. A
    process that others abort calls nothing more, as if it was killed; who reads from its pipes
    finds their end.
    """
    failure: Exception | SystemExit | None = None
    try:
        try:
            work()
        except (Exception, SystemExit) as error:
            if process.ends_at_once or _is_aborted(process):
                for end in list(process.pipes):
                    end.close()
                raise
            failure = error
        # Outside of the except clause, so that errors of handlers are not chained to this one.
        if failure is None or isinstance(failure, SystemExit):
            leave(process)
        else:
            _run_handlers()
    finally:
        close_all()
    if failure is not None:
        raise failure


def leave(process: Process) -> None:
    """Join the threads of a process, call its handlers, and end what is left of it.

    ``multiprocessing`` joins processes by a handler of its own, which is older than those of a
    program and called after them: they may tell processes to end.
    """
    _call_all(process, process.thread_handlers, "in thread exit callback")
    join_all(process)
    _call_all(process, process.exit_handlers, "in atexit callback")
    _end_children(process)
    _finalize_all(process)
    end_daemons(process)


def _end_children(process: Process) -> None:
    """Join the processes that it has started; daemons are terminated."""
    for child in [worker for worker in process.workers if worker.daemon]:
        child.terminate()
    for child in list(process.workers):
        child.join()


def _is_aborted(process: Process) -> bool:
    rank = process.rank_of_run
    return rank is not None and rank.aborted


def _registering() -> Process | None:
    """Return the simulated process that registers a handler; None for the real process."""
    # Shared libraries outlive the run.
    return None if HERE.is_foreign or HERE.is_importing else HERE.process


def _register(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    process = _registering()
    if process is None:
        return _REGISTER(func, *args, **kwargs)
    if not callable(func):
        raise TypeError("the first argument must be callable")
    process.exit_handlers.append((func, args, kwargs))
    return func


def _unregister(func: Callable[..., Any]) -> None:
    process = _registering()
    if process is None:
        _UNREGISTER(func)
    else:
        handlers = process.exit_handlers
        handlers[:] = [handler for handler in handlers if handler[0] != func]


def _clear() -> None:
    process = _registering()
    if process is not None:
        process.exit_handlers.clear()


def _count() -> int:
    process = _registering()
    return _COUNT() if process is None else len(process.exit_handlers)


def _run_handlers() -> None:
    process = _registering()
    if process is not None:
        _call_all(process, process.exit_handlers, "in atexit callback")
        # Finalizers come last, as they were registered first: PyTorch makes some when imported.
        _finalize_all(process)


def _register_before_threads_end(func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    process = _registering()
    if process is None:
        _register_of_threads(func, *args, **kwargs)
    else:
        process.thread_handlers.append((func, args, kwargs))


def _call_all(
    process: Process, handlers: list[tuple[Callable[..., Any], Any, Any]], where: str
) -> None:
    """Call handlers, the latest first, and print their errors as Python does."""
    for handler in reversed(handlers[:]):
        if not any(handler is other for other in handlers):
            # Another handler has unregistered it.
            continue
        function, args, kwargs = handler
        try:
            function(*args, **kwargs)
        except BaseException as ignored:
            if isinstance(ignored, KeyboardInterrupt) or _is_aborted(process):
                raise
            kind, error, frames = sys.exc_info()
            print(f"Exception ignored {where}: {function!r}", file=sys.stderr)
            own = None if frames is None else frames.tb_next
            traceback.print_exception(kind, error, own)
    handlers.clear()


def _finalize_all(process: Process) -> None:
    """Call the pending finalizers of a process, the latest first."""
    while True:
        mine = [
            (info.index, name)
            for name, info in list(_finalize._registry.items())
            if info.atexit
            and getattr(info.index, "process", None) is process
            # A rank's registrations with PyTorch's dispatcher may serve other ranks.
            and info.func is not torch.library._del_library
        ]
        if not mine:
            return
        try:
            max(mine)[1]()
        except Exception:
            # As weakref does.
            sys.excepthook(*sys.exc_info())
