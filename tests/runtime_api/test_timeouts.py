"""Group timeouts of the native runtime pass in simulated time; a look too early takes some."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kernbench.errors import CollectiveTimeoutError, DeadlockError, UsageError
from kernbench.runtime_api import RuntimeContext, SpawnException


def run(body, nprocs: int = 3, **options) -> RuntimeContext:
    with RuntimeContext(ranks=nprocs) as torch:

        def worker(rank: int) -> None:
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group(**options)
            body(torch, rank)

        torch.multiprocessing.spawn(worker, nprocs=nprocs)
    return torch


@pytest.mark.adr("0120-D1")
@pytest.mark.adr("0120-D3")
@pytest.mark.parametrize("seconds", [30, None])
def test_a_poll_for_who_never_comes_ends_at_the_timeout(seconds: int | None) -> None:
    def body(torch, rank: int) -> None:
        if rank:
            work = torch.distributed.all_reduce(torch.ones(4), async_op=True)
            while not work.is_completed():
                pass

    options: dict[str, Any] = {} if seconds is None else {"timeout": timedelta(seconds=seconds)}
    with pytest.raises(SpawnException) as caught:
        run(body, **options)
    for error in caught.value.exceptions:
        assert isinstance(error, CollectiveTimeoutError)
        assert f"timed out after {seconds or 600} s, without rank 0" in str(error)
        assert "rank 0  finished" in str(error)
        assert "test_timeouts.py:" in str(error)


@pytest.mark.adr("0120-D3")
@pytest.mark.parametrize("what", ["work", "event", "stream"])
def test_a_look_too_early_takes_a_launch_and_lets_others_come(what: str) -> None:
    def body(torch, rank: int) -> None:
        x = torch.ones(4)
        if rank == 0:
            torch.ahbm.synchronize()
        work = torch.distributed.all_reduce(x, async_op=True)
        stream = torch.ahbm.current_stream()
        if what != "work":
            stream.wait_handle(work)
        event = stream.record_event()
        asked = {"work": work.is_completed, "event": event.query, "stream": stream.query}[what]
        before = torch.run.simulation.now_ps
        looks = 0
        while not asked():
            looks += 1
        took = torch.run.simulation.now_ps - before
        assert took == (looks + 1) * torch.machine.sip.host_launch_ps
        now = torch.run.simulation.now_ps
        assert asked()
        assert torch.run.simulation.now_ps == now
        work.wait()
        assert x.numpy().tolist() == [3] * 4

    run(body)


def test_who_waits_while_nothing_can_happen_is_a_deadlock_at_once() -> None:
    def body(torch, rank: int) -> None:
        if rank:
            torch.distributed.barrier()

    with pytest.raises(DeadlockError, match="rank 0  finished"):
        run(body, timeout=timedelta(seconds=30))


@pytest.mark.parametrize("timeout", [30, timedelta(0), "30s"])
def test_a_timeout_that_is_no_time_is_refused(timeout: object) -> None:
    with pytest.raises(SpawnException) as caught:
        run(lambda torch, rank: None, timeout=timeout)
    error = caught.value.exceptions[0]
    assert isinstance(error, UsageError)
    assert "timeout must be a positive timedelta" in str(error)
