"""Sweeps on real clusters of several processes; ``make test-engines`` installs what they need."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.sweeps.conftest import Sweep

POINTS = 12
GRID = ("swept.py", "-g", f"n={','.join(map(str, range(1, POINTS + 1)))}", "-p", "log=ran.txt")


def ran(folder: Path) -> list[int]:
    log = folder / "ran.txt"
    return list(map(int, log.read_text().split())) if log.exists() else []


def kill_when_three_are_kept(folder: Path, worker: int) -> threading.Thread:
    points = folder / "sweeps/swept/points"

    def work() -> None:
        while len(list(points.glob("*.json"))) < 3:
            time.sleep(0.02)
        os.kill(worker, signal.SIGKILL)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def check(folder: Path, status: int, out: str, most_again: int) -> None:
    """All points have a result, and only what the killed worker had was run again."""
    assert status == 0
    assert f"{POINTS} points: {POINTS} done, {POINTS} of them run now" in out
    counts = Counter(ran(folder))
    assert sorted(counts) == list(range(1, POINTS + 1))
    assert 0 <= counts.total() - POINTS <= most_again


@pytest.mark.slow
@pytest.mark.adr("0150-D5")
@pytest.mark.filterwarnings("ignore")  # Dask's own
def test_a_dask_cluster_finishes_though_a_worker_is_killed(sweep: Sweep, folder: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        with distributed.Client(cluster) as client:
            victim, *_ = client.run(os.getpid).values()
        killing = kill_when_three_are_kept(folder, victim)
        status, out, _ = sweep(*GRID, "-p", "pause_s=0.5", "--engine", f"dask://{address}")
        killing.join(5)
        assert not killing.is_alive()
        # One runs at a time on each; the next may have begun before the worker was found dead.
        check(folder, status, out, most_again=2)

        program = folder / "swept.py"
        known = program.read_text()
        points = folder / "sweeps/swept/points"
        for path in points.glob("*.json"):
            assert json.loads(path.read_text().partition("\n")[0])["host"] == os.uname().nodename
        program.write_text(known.replace('"ran"', '"RAN"'))
        status, out, err = sweep("swept.py", "-g", "n=1,2", "--engine", f"dask://{address}")
        assert status == 0, err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_scheduler_is_said(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("kernbench.cli.sweeps.engines._PATIENCE_S", 1)
    status, _, err = sweep("swept.py", "-g", "n=1", "--engine", "dask://127.0.0.1:9")
    assert status == 2
    assert err.splitlines()[-1].startswith("error: no Dask scheduler answers at 127.0.0.1:9")


@pytest.mark.slow
@pytest.mark.adr("0150-D5")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_finishes_though_a_worker_is_killed(
    sweep: Sweep, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into the home folder

    def pid_slowly() -> int:
        time.sleep(0.3)
        return os.getpid()

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        pids: set[int] = set()
        while len(pids) < 2:
            asked = [ray.remote(pid_slowly).remote() for _ in range(3)]
            pids = set(ray.get(asked))
        killing = kill_when_three_are_kept(folder, min(pids))
        status, out, _ = sweep(*GRID, "-p", "pause_s=0.5", "--engine", "ray")
        killing.join(5)
        check(folder, status, out, most_again=2)
    finally:
        ray.shutdown()
