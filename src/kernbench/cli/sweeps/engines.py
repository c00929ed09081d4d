"""What runs the points of a sweep: local processes, or those of a cluster, by name."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from kernbench.errors import UsageError

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ALL: set[Server] = set()
_IDLE: list[Server] = []
"""Servers of this process that wait for a job."""
_GUARD = threading.Lock()


class LostPointError(Exception):
    """The server of a point is gone, for no fault of the point's."""


class Server:
    """A process that runs points, one at a time."""

    def __init__(self) -> None:
        # Points run side by side; each with threads for all cores would be slower.
        one_each = dict.fromkeys(_ONE_THREAD, "1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for who runs the sweep
            env={**one_each, **os.environ},
        )
        self._read()

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a job.

        Raises:
            LostPointError: The process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            # A pipe that is closed at either end.
            raise LostPointError("the process that runs points has ended") from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline()
        except ValueError:
            # Another thread has ended it.
            line = ""
        if not line.endswith("\n"):
            status = self._process.wait()
            raise LostPointError(f"the process that runs points has ended with {status}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process, and the point that it runs; a thread that waits for it hears so."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def run_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a point on a server of this process, and return its answer.

    Raises:
        LostPointError: The server has ended.
    """
    with _GUARD:
        server = _IDLE.pop() if _IDLE else None
    if server is None:
        server = Server()
        _ALL.add(server)
    try:
        answer = server.run(job)
    except BaseException:
        _ALL.discard(server)
        server.end()
        raise
    with _GUARD:
        _IDLE.append(server)
    return answer


def end_servers(*, busy_only: bool = False) -> None:
    """End the servers of this process; new ones are started when needed."""
    with _GUARD:
        servers = [server for server in _ALL if not (busy_only and server in _IDLE)]
        _ALL.difference_update(servers)
        _IDLE[:] = [server for server in _IDLE if server in _ALL]
    for server in servers:
        server.end()


atexit.register(end_servers)


Answer = dict[str, Any]
Run = Callable[[Mapping[str, Any]], Answer]
Submit = Callable[[Mapping[str, Any]], "Future[Answer]"]
_PATIENCE_S = 10
_RETRIES = 3
"""How often a cluster runs a point again whose worker has gone; it has no result yet."""


@dataclass(frozen=True, slots=True)
class PointEngine:
    """Runs points."""

    name: str
    slots: Callable[[], int]
    """How many points run at a time; a cluster's workers come and go."""
    submit: Submit
    lost: tuple[type[BaseException], ...]
    """What a future raises if a point was lost with its worker."""


def engine(
    name: str, workers: int | None, run: Run = run_job
) -> AbstractContextManager[PointEngine]:
    """Return the engine of that name; what it still runs at the end of its block is ended.

    ``run`` answers a job, in whichever process of the engine; a function of a module.

    Raises:
        UsageError: There is no such engine, it is not installed, or nobody answers there.
    """
    check_engine(name, workers)
    kind, _, address = name.partition("://")
    if name == "local":
        return _local(workers or len(os.sched_getaffinity(0)), run)
    return (_dask if kind == "dask" else _ray)(address, run)


def check_engine(name: str, workers: int | None) -> None:
    """Refuse what no engine can be, whether there is something to run on it or not.

    Raises:
        UsageError: There is no such engine, or it has no such workers.
    """
    kind, _, address = name.partition("://")
    if name != "local" and kind != "ray" and not (kind == "dask" and address):
        raise UsageError(
            f"no engine {name!r}; known: local, dask://HOST:PORT (of a scheduler), ray, "
            "ray://HOST:PORT"
        )
    if name != "local" and workers is not None:
        raise UsageError(f"--workers is for local processes; {name} has the workers that it has")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers must be at least 1, but got {workers}")


@contextlib.contextmanager
def _local(workers: int, run: Run) -> Iterator[PointEngine]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="kernbench-sweep")
    try:
        yield PointEngine(
            "local", lambda: workers, lambda job: pool.submit(run, job), (LostPointError,)
        )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        end_servers(busy_only=True)  # of an interrupted sweep; the others serve the next one
        pool.shutdown()


@contextlib.contextmanager
def _dask(address: str, run: Run) -> Iterator[PointEngine]:
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise UsageError(
            'this engine needs Dask: pip install "kernbench[dask]", here and on the workers'
        ) from None
    try:
        client = Client(f"tcp://{address}", timeout=_PATIENCE_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(f"no Dask scheduler answers at {address}: {error}") from None
    pool = client.get_executor(pure=False, retries=_RETRIES)
    try:
        yield PointEngine(
            f"dask://{address}",
            lambda: sum(client.nthreads().values()),
            lambda job: pool.submit(run, dict(job)),
            (LostPointError, KilledWorker),
        )
    finally:
        pool.shutdown(wait=False)
        client.close()


@contextlib.contextmanager
def _ray(address: str, run: Run) -> Iterator[PointEngine]:
    try:
        import ray
    except ImportError:
        raise UsageError(
            'this engine needs Ray: pip install "kernbench[ray]", here and on the workers'
        ) from None
    was_there = ray.is_initialized()
    if not was_there:
        try:
            ray.init(
                address=f"ray://{address}" if address else None,
                log_to_driver=False,
                logging_level="error",
                include_dashboard=False if not address else None,
            )
        except (ConnectionError, TimeoutError, RuntimeError) as error:
            raise UsageError(
                f"no Ray cluster answers at {address or 'this machine'}: {error}"
            ) from None
    remote = ray.remote(num_cpus=1, max_retries=_RETRIES, retry_exceptions=[LostPointError])(run)
    try:
        yield PointEngine(
            "ray",
            lambda: int(ray.cluster_resources().get("CPU", 0)),
            lambda job: remote.remote(dict(job)).future(),
            (LostPointError, ray.exceptions.RayError),
        )
    finally:
        if not was_there:
            ray.shutdown()
