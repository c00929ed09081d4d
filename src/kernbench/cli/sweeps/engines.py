"""What runs the points of a sweep: local processes, or those of a cluster, by name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kernbench.cli.sweeps.worker import LostPointError, end_servers, run_job
from kernbench.errors import UsageError

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


@contextlib.contextmanager
def engine(name: str, workers: int | None, run: Run = run_job) -> Iterator[PointEngine]:
    """Yield the engine of that name; what it still runs at the end of the block is ended.

    ``run`` answers a job, in whichever process of the engine; a function of a module.

    Raises:
        UsageError: There is no such engine, it is not installed, or nobody answers there.
    """
    check_engine(name, workers)
    kind, _, address = name.partition("://")
    if name == "local":
        with _local(workers or len(os.sched_getaffinity(0)), run) as local:
            yield local
    elif kind == "dask":
        with _dask(address, run) as local:
            yield local
    else:
        with _ray(address, run) as local:
            yield local


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
