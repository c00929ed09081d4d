"""``ProcessPoolExecutor`` of a simulated process: a pool of its workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import Pool
from typing import Any

from kernbench.errors import OsExit
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE

_make_really = ProcessPoolExecutor.__init__
_submit_really, _shut_down_really = ProcessPoolExecutor.submit, ProcessPoolExecutor.shutdown


def install(patches: Patches) -> None:
    """Let executors of ranks start workers of them."""
    patches.set_all(
        ProcessPoolExecutor, __init__=_make_executor, submit=_submit, shutdown=_shut_down
    )


class _Gone:
    """Stands where a worker was that has ended: the pool starts no other, nor waits for it."""

    exitcode = None

    def terminate(self) -> None:
        """Do nothing."""

    def is_alive(self) -> bool:
        """Return False."""
        return False

    def join(self) -> None:
        """Do nothing."""


class _Workers(list[Any]):
    """Workers of a pool, which takes those out that have ended."""

    def __init__(self, fail: Callable[[], None]) -> None:
        super().__init__()
        self._fail = fail

    def __delitem__(self, index: Any) -> None:
        # Of workers that have done all their tasks it is 0.
        if self[index].exitcode:
            self[index] = _Gone()
            self._fail()
        else:
            super().__delitem__(index)


class _ExecutorPool(Pool):
    """The pool of an executor, which is broken once a worker has ended in the middle of a task."""

    _pool: list[Any]

    def __init__(self, num_workers: int | None, *args: Any, **kwargs: Any) -> None:
        self.pending: set[Future[Any]] = set()
        self.is_broken = False
        super().__init__(num_workers, *args, **kwargs)

    def _repopulate_pool(self) -> None:
        # The constructor calls it once, before anything has seen the list.
        self._pool = _Workers(self.fail)
        super()._repopulate_pool()  # type: ignore[misc]

    def fail(self) -> None:
        """Give all that wait an error."""
        self.is_broken = True
        for future in list(self.pending):
            self.pending.discard(future)
            future.set_exception(
                BrokenProcessPool(
                    "A process in the process pool was terminated abruptly while the future was "
                    "running or pending."
                )
            )


@dataclass(slots=True)
class _LazyPool:
    """The pool of an executor, whose workers start with its first task."""

    make: Callable[[], _ExecutorPool]
    pool: _ExecutorPool | None = None
    is_closed: bool = False


class _AskedToEnd:
    """What a task has that asks its process to end, which an executor hands to who waits."""

    def __init__(self, error: SystemExit) -> None:
        self.error = error


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    except SystemExit as error:
        if isinstance(error, OsExit):
            raise
        return _AskedToEnd(error)


def _make_executor(
    self: Any,
    max_workers: int | None = None,
    mp_context: Any = None,
    initializer: Callable[..., object] | None = None,
    initargs: tuple[Any, ...] = (),
    *,
    max_tasks_per_child: int | None = None,
) -> None:
    """``ProcessPoolExecutor``: in a simulated process, on a pool of workers."""
    if HERE.process is None or HERE.is_foreign:
        _make_really(
            self, max_workers, mp_context, initializer, initargs,
            max_tasks_per_child=max_tasks_per_child,
        )  # fmt: skip
        return
    if max_workers is not None and max_workers <= 0:
        raise ValueError("max_workers must be greater than 0")
    if initializer is not None and not callable(initializer):
        raise TypeError("initializer must be a callable")
    context = (mp_context or multiprocessing.get_context()).get_context()
    self._kernbench_pool = _LazyPool(
        partial(
            _ExecutorPool, max_workers, initializer, initargs, max_tasks_per_child, context=context
        )
    )


def _submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    lazy: _LazyPool | None = vars(self).get("_kernbench_pool")
    if lazy is None:
        future: Future[Any] = _submit_really(self, fn, *args, **kwargs)
        return future
    if lazy.pool is not None and lazy.pool.is_broken:
        raise BrokenProcessPool(
            "A child process terminated abruptly, the process pool is not usable anymore"
        )
    if lazy.is_closed:
        raise RuntimeError("cannot schedule new futures after shutdown")
    pool = lazy.pool = lazy.pool or lazy.make()
    future = Future()
    future.set_running_or_notify_cancel()
    pool.pending.add(future)

    def end_by(error: BaseException) -> None:
        if future in pool.pending:
            pool.pending.discard(future)
            future.set_exception(error)

    def end(result: Any) -> None:
        if type(result) is _AskedToEnd:
            end_by(result.error)
        elif future in pool.pending:
            pool.pending.discard(future)
            future.set_result(result)

    pool.apply_async(_call, (fn, args, kwargs), callback=end, error_callback=end_by)
    if pool.is_broken:
        # Its first workers could not begin.
        pool.fail()
    return future


def _shut_down(self: Any, wait: bool = True, *, cancel_futures: bool = False) -> None:
    lazy: _LazyPool | None = vars(self).get("_kernbench_pool")
    if lazy is None:
        _shut_down_really(self, wait, cancel_futures=cancel_futures)
        return
    lazy.is_closed = True
    pool = lazy.pool
    if pool is None:
        return
    if pool.is_broken:
        # It waits for what its workers had begun.
        pool.terminate()
    else:
        pool.close()
    if wait:
        pool.join()
