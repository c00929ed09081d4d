"""Worker-wait on a run (T3): ranks wait for launches and collectives, main drives."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from kernbench.errors import UsageError
from kernbench.runtime_api import RuntimeContext
from tests.runtime_api.runtime_kernels import add_one


@pytest.mark.adr("0027-D0")
def test_launches_of_a_rank_that_went_away_still_happen() -> None:
    kept = {}

    def worker(rank: int, torch: RuntimeContext) -> None:
        x, out = torch.zeros(64), torch.zeros(64)
        add_one[(1,)](x, out, 64, BLOCK=64)
        kept[rank] = out

    with RuntimeContext(ranks=2) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)
        assert [kept[rank].numpy().tolist() for rank in range(2)] == [[1.0] * 64] * 2


@pytest.mark.adr("0027-D0")
def test_a_rank_resumes_with_the_handles_it_waited_for_done() -> None:
    done = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        x, out = torch.zeros(64), torch.zeros(64)
        handles = [torch.launch("step", add_one, x, out, 64, BLOCK=64) for _ in range(3)]
        torch.wait(handles[-1])
        done.append([handle.done for handle in handles])

    with RuntimeContext(ranks=4, data=False) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=4)
    assert done == [[True] * 3] * 4


@pytest.mark.adr("0027-D0")
def test_draining_a_run_twice_adds_nothing() -> None:
    with RuntimeContext() as torch:
        x, out = torch.zeros(64), torch.zeros(64)
        add_one[(1,)](x, out, 64, BLOCK=64)
        torch.drain()
        state = (torch.run.simulation.now_ps, len(torch.op_log), out.tolist())
        now_ps, logged = torch.run.simulation.now_ps, len(torch.op_log)
        torch.drain()
        assert (torch.run.simulation.now_ps, len(torch.op_log)) == (now_ps, logged)
        assert state[2] == [1.0] * 64


@pytest.mark.adr("0027-D0")
def test_an_exception_of_a_drained_handle_surfaces_in_the_rank_that_waits(monkeypatch) -> None:
    caught = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        x, out = torch.zeros(64), torch.zeros(64)
        handle = torch.launch("step", add_one, x, out, 64, BLOCK=64)
        handle.error = ZeroDivisionError("from the device")
        with pytest.raises(ZeroDivisionError, match="from the device"):
            torch.wait(handle)
        caught.append(rank)

    with RuntimeContext(ranks=2, data=False) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)
    assert sorted(caught) == [0, 1]


@pytest.mark.adr("0027-D7")
def test_a_launch_lets_the_other_ranks_run() -> None:
    order = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        x, out = torch.empty(64), torch.empty(64)
        for _ in range(3):
            order.append(rank)
            add_one[(1,)](x, out, 64, BLOCK=64)

    with RuntimeContext(ranks=3, data=False) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=3)
    assert order == [0, 1, 2] * 3


def test_host_time_and_waits_are_on_record() -> None:
    with RuntimeContext(ranks=1, data=False) as torch:
        x, out = torch.empty(64), torch.empty(64)
        handle = torch.launch("step", add_one, x, out, 64, BLOCK=64)
        torch.wait(handle)
        launch_ps = torch.machine.sip.host_launch_ps
        spans = [(span.kind, span.label, span.start_ps) for span in torch.op_log.host_spans]
        assert spans == [("launch", "step", 0), ("wait", "step", launch_ps)]
        (instance,) = torch.op_log.instances
        assert instance.starts_ps == (launch_ps,)
        assert instance.ends_ps == (torch.run.simulation.now_ps,)
        assert instance.ends_ps[0] - launch_ps == instance.template.duration_ps


def test_the_same_program_gives_the_same_log() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.distributed.init_process_group()
        x = torch.randn(256)
        for _ in range(2):
            add_one[(4,)](x, x, 256, BLOCK=64)
            torch.distributed.all_reduce(x)

    logs = []
    for _ in range(2):
        with RuntimeContext(ranks=4, seed=7) as torch:
            torch.multiprocessing.spawn(worker, args=(torch,), nprocs=4)
            logs.append(
                [
                    (i.template.name, i.ranks, i.starts_ps, i.ends_ps, i.addresses)
                    for i in torch.op_log.instances
                ]
            )
    assert logs[0] == logs[1]


def test_buffers_do_not_outlive_their_tensors_and_records() -> None:
    with RuntimeContext(ranks=1) as torch:
        x, middle, out = torch.ones(64), torch.empty(64), torch.empty(64)
        add_one[(1,)](x, middle, 64, BLOCK=64)
        add_one[(1,)](middle, out, 64, BLOCK=64)
        buffer = weakref.ref(middle)
        used = torch.ahbm.memory_allocated()
        del middle
        assert buffer() is None
        assert torch.ahbm.memory_allocated() < used
        assert out.tolist() == [3.0] * 64


def test_two_runs_live_side_by_side() -> None:
    with RuntimeContext(ranks=1) as first, RuntimeContext(ranks=1) as second:
        a, b = first.zeros(64), second.ones(64)
        first.launch("one", add_one, a, a, 64, BLOCK=64)
        second.launch("two", add_one, b, b, 64, BLOCK=64)
        assert np.array_equal(a.numpy(), np.full(64, 1.0, dtype=np.float32))
        assert np.array_equal(b.numpy(), np.full(64, 2.0, dtype=np.float32))
        assert [i.template.name for i in first.op_log.instances][:2] == ["fill", "one"]
        with pytest.raises(UsageError, match="belongs to another run"):
            a.copy_(b)


@pytest.mark.parametrize("handle", [None, 3, "all_reduce"])
def test_what_is_no_handle_cannot_be_waited_for(handle) -> None:
    with RuntimeContext() as torch, pytest.raises(UsageError, match="wait takes what launch"):
        torch.wait(handle)


@pytest.mark.parametrize("ranks", [0, -1, True])
def test_a_run_needs_at_least_one_rank(ranks) -> None:
    with pytest.raises(UsageError, match="ranks must be at least 1"):
        RuntimeContext(ranks=ranks)


def test_the_report_covers_what_was_under_way() -> None:
    with RuntimeContext(ranks=2, data=False) as torch:
        x = torch.empty(64)
        add_one[(1,)](x, x, 64, BLOCK=64)
        report = torch.report()
        assert report["kernels"][0]["launches"] == 1
        assert (report["ranks"], len(report["per_rank"])) == (torch.world_size, 2)
        assert report["time_ns"] * 1000 == torch.run.simulation.now_ps
