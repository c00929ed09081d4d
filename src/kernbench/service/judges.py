"""A pool of warm processes, each of which judges one candidate at a time; one queue waits."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from kernbench.errors import KernbenchError

_MOST_JUDGED = 200
"""How many candidates one process judges before another takes its place."""


class BusyError(KernbenchError):
    """More candidates wait than the service lets wait."""


class JudgePool:
    """Processes that judge candidates, which share nothing but the queue before them."""

    def __init__(self, workers: int, *, most_waiting: int = 64, **settings: Any) -> None:
        """Start them when they are first asked; ``settings`` are those of :func:`judge`."""
        self._workers, self._most, self._settings = workers, most_waiting, settings
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self.waiting = 0
        self.judged = 0

    def judge(self, candidate: Path, task: Path, machines: Sequence[str]) -> dict[str, Any]:
        """Return the verdict as JSON has it.

        Raises:
            BusyError: Too many wait.
            KernbenchError: The task is none.
        """
        for _ in range(2):
            pool, future = self._submit(candidate, task, machines)
            try:
                answer = future.result()
            except BrokenProcessPool:
                self._forget(pool)
                continue
            finally:
                with self._lock:
                    self.waiting -= 1
            if isinstance(answer, str):
                raise KernbenchError(answer)
            return answer
        raise KernbenchError(
            "the process that judged this candidate died, and so did a second one: judge it alone "
            "by kernbench judge, and look at what it uses"
        )

    def _submit(
        self, candidate: Path, task: Path, machines: Sequence[str]
    ) -> tuple[ProcessPoolExecutor, Future[dict[str, Any] | str]]:
        with self._lock:
            if self.waiting >= self._workers + self._most:
                raise BusyError(f"{self.waiting} candidates wait already; ask again later")
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    self._workers,
                    multiprocessing.get_context("spawn"),
                    max_tasks_per_child=_MOST_JUDGED,
                )
            self.waiting += 1
            self.judged += 1
            pool = self._pool
            names = (os.fspath(candidate), os.fspath(task), list(machines), self._settings)
            return pool, pool.submit(_verdict, *names)

    def _forget(self, pool: ProcessPoolExecutor) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
        pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _verdict(
    candidate: str, task: str, machines: list[str], settings: dict[str, Any]
) -> dict[str, Any] | str:
    """Judge in a process of the pool; an error of the request comes back as its text."""
    from kernbench.judge.judging import Request, judge_request

    try:
        request = Request(
            candidate=Path(candidate), task=Path(task), machines=tuple(machines), **settings
        )
        return judge_request(request).to_dict()
    except KernbenchError as error:
        return str(error)
