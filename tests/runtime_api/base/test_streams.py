"""Streams and events: what overlaps, what waits, and what a rank sees of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kernbench.errors import UsageError
from kernbench.hardware import load_machine, parse_machine
from kernbench.runtime_api import RuntimeContext
from tests.interleaved.live_kernels import collatz
from tests.runtime_api.runtime_kernels import add_one

SIZE = 1 << 20


def spans(torch: Any, name: str) -> list[tuple[int, int]]:
    """Return start and end of every command of a name."""
    return [
        (instance.starts_ps[0], instance.ends_ps[0])
        for instance in torch.op_log.instances
        if instance.template.name == name
    ]


@pytest.mark.adr("0036-D1")
def test_kernels_of_two_streams_share_the_pes_and_copies_run_beside_them() -> None:
    with RuntimeContext(ranks=1) as torch:
        x = torch.zeros(SIZE)
        torch.ahbm.synchronize()
        side = torch.ahbm.Stream()
        host = torch.ahbm.Stream()
        y = x + 1
        with torch.ahbm.stream(side):
            z = x * 2
        with torch.ahbm.stream(host):
            x.numpy()
        torch.ahbm.synchronize()
        kernels = sorted(
            (instance.starts_ps[0], instance.ends_ps[0], instance.stream)
            for instance in torch.op_log.instances
            if instance.template.kind == "kernel"
        )
        (copy,) = spans(torch, "copy_to_host")
        assert (y.numpy()[0], z.numpy()[0]) == (1, 0)
    (_, first_end, first), (second_start, second_end, second) = kernels
    assert (first, second) == ("sip0", "sip0.1")
    assert second_start >= first_end
    assert copy[0] < second_end, "the host link is free while kernels run"


@pytest.mark.adr("0036-D2")
def test_a_stream_waits_for_another_and_the_host_goes_on() -> None:
    with RuntimeContext(ranks=1) as torch:
        side = torch.ahbm.Stream()
        with torch.ahbm.stream(side):
            x = torch.zeros(64 * SIZE)
            before = torch.ahbm.Event()
            before.record()
        assert not before.query()
        since = torch.run.simulation.now_ps
        torch.ahbm.current_stream().wait_stream(side)
        assert torch.run.simulation.now_ps == since
        y = torch.empty(SIZE).copy_(x[:SIZE])
        torch.ahbm.current_stream().synchronize()
        (filled,), (copied,) = spans(torch, "fill"), spans(torch, "copy")
        assert copied[0] >= filled[1]
        assert before.query()
        assert side.query()
        assert y.numpy()[0] == 0


@pytest.mark.adr("0036-D2")
def test_elapsed_time_is_that_of_the_work_between_two_events() -> None:
    with RuntimeContext(ranks=1) as torch:
        begin, end = torch.ahbm.Event(enable_timing=True), torch.ahbm.Event(enable_timing=True)
        with pytest.raises(UsageError, match="the first event has not happened"):
            begin.elapsed_time(end)
        begin.record()
        torch.zeros(SIZE)
        end.record()
        end.synchronize()
        (filled,) = spans(torch, "fill")
        assert begin.elapsed_time(end) >= (filled[1] - filled[0]) / 1e9
        assert end.elapsed_time(begin) == -begin.elapsed_time(end)


@pytest.mark.adr("0036-D3")
def test_a_collective_on_a_stream_waits_for_it_alone_and_its_exposed_part_is_reported() -> None:
    """The same work with and without overlap: only what no kernel hides counts as exposed."""

    def exposed_ns(overlap: bool) -> tuple[float, float]:
        with RuntimeContext(ranks=2, data=False) as torch:

            def worker(rank: int) -> None:
                torch.ahbm.set_device(rank)
                torch.distributed.init_process_group()
                message, x = torch.empty(SIZE), torch.empty(32 * SIZE)
                comm = torch.ahbm.Stream()
                with torch.ahbm.stream(comm):
                    work: Any = torch.distributed.all_reduce(message, async_op=True)
                if not overlap:
                    work.wait()
                x + 1
                work.wait()
                torch.ahbm.synchronize()

            torch.multiprocessing.spawn(worker, nprocs=2)
            report = torch.report()
        (line,) = report["collectives"]
        return report["per_rank"][0]["comm_exposed_ns"], line["time_ns"]

    apart, took = exposed_ns(overlap=False)
    hidden, _ = exposed_ns(overlap=True)
    assert apart >= took
    assert hidden < apart / 2


def overlapped(
    kernel_first: bool, alone: str = "", size: int = 1 << 22
) -> tuple[dict[str, tuple[int, int]], Any]:
    """Return start and end of a kernel and an all-reduce on two SIPs whose HBM both want most of.

    ``alone`` leaves the other one out; ``after`` runs the second when the first has ended.
    """
    data = load_machine("ahbm", 2).spec.model_dump(mode="json")
    data["sip"]["cube"]["hbm_bandwidth_gbps"] = 100
    data["sip"]["cache"] = None
    data["links"]["bandwidth_gbps"] = 80
    machine = parse_machine(yaml.safe_dump(data), "test.yaml", 2)
    with RuntimeContext(machine=machine, ranks=2, data=False) as torch:

        def worker(rank: int) -> None:
            torch.distributed.init_process_group()
            message, x, out = torch.empty(size), torch.empty(2 * size), torch.empty(2 * size)
            comm = torch.ahbm.Stream()

            def kernel() -> None:
                if alone != "collective":
                    add_one[(2 * size // 4096,)](x, out, 2 * size, BLOCK=4096)

            def collective() -> None:
                if alone != "kernel":
                    with torch.ahbm.stream(comm):
                        torch.distributed.all_reduce(message, async_op=True)

            for step in (kernel, collective) if kernel_first else (collective, kernel):
                step()
                if alone == "after":
                    torch.ahbm.synchronize()
                torch.run.simulation.sleep(10_000_000)
            torch.ahbm.synchronize()

        torch.multiprocessing.spawn(worker, nprocs=2)
        torch.drain()
        instances = {
            instance.template.name: (instance.starts_ps[0], max(instance.ends_ps))
            for instance in torch.op_log.instances
        }
        return instances, torch.op_log.to_arrow()


@pytest.mark.adr("0036-D4")
@pytest.mark.parametrize("kernel_first", [True, False])
def test_a_kernel_and_a_collective_slow_each_other_down_whichever_starts_later(
    kernel_first: bool,
) -> None:
    together, rows = overlapped(kernel_first)
    took = {name: end - start for name, (start, end) in together.items()}
    alone: dict[str, Any] = {}
    for only in ("kernel", "collective"):
        result, _ = overlapped(kernel_first, only)
        alone |= {name: end - start for name, (start, end) in result.items()}
    assert set(took) == set(alone) == {"add_one", "all_reduce"}
    first, second = ("add_one", "all_reduce") if kernel_first else ("all_reduce", "add_one")
    assert together[first][0] < together[second][0] < together[first][1]
    for name in took:
        assert took[name] > 1.1 * alone[name]
    span = max(end for _, end in together.values()) - together[first][0]
    lag = together[second][0] - together[first][0]
    assert max(alone.values()) < span <= max(sum(alone.values()), lag + alone[second]) + 10
    # The rows of the log are those of the longer time.
    for name, (_, end) in together.items():
        assert max(row["end_ps"] for row in rows.to_pylist() if row["name"] == name) == end


@pytest.mark.adr("0036-D4")
def test_one_after_the_other_nothing_is_slowed_down() -> None:
    apart, _ = overlapped(True, "after")
    for only in ("kernel", "collective"):
        result, _ = overlapped(True, only)
        for name, (start, end) in result.items():
            assert apart[name][1] - apart[name][0] == end - start


def test_a_stream_of_another_sip_is_refused() -> None:
    with RuntimeContext(ranks=2) as torch:
        other = torch.ahbm.Stream(1)
        with pytest.raises(UsageError, match="is of SIP 1, but rank 0 is bound to SIP 0"):
            torch.ahbm.stream(other).__enter__()


def test_an_event_that_was_never_recorded_holds_nothing_up() -> None:
    with RuntimeContext(ranks=1) as torch:
        event = torch.ahbm.Event()
        event.wait()
        event.synchronize()
        assert event.query()


@pytest.mark.unchecked("nothing but the one set of PEs orders the two streams")
def test_a_kernel_that_decides_by_data_sees_what_ran_before_it_on_another_stream() -> None:
    """The SIP runs one kernel at a time, so the long one has ended when the other starts."""
    with RuntimeContext(ranks=1) as torch:
        x = torch.full((1 << 20,), 5, dtype="i32")
        steps = torch.zeros(64, dtype="i32")
        torch.ahbm.synchronize()
        add_one[(1024,)](x, x, 1 << 20, BLOCK=1024)
        with torch.ahbm.stream(torch.ahbm.Stream()):
            collatz[(64,)](x, steps)
        torch.ahbm.synchronize()
        # 6, 3, 10, 5, 16, 8, 4, 2, 1
        assert set(steps.tolist()) == {8}


def _reduce_thrice(rank: int, torch: Any, seen: dict[int, Any], blocking: bool) -> None:
    torch.ahbm.set_device(rank)
    torch.distributed.init_process_group(blocking_wait=blocking)
    x = torch.ones(SIZE)
    for _ in range(3):
        x = x + 1
        torch.distributed.all_reduce(x)
    called = torch.run.simulation.now_ps
    seen[rank] = called, x.numpy()[-1], torch.run.simulation.now_ps


@pytest.mark.adr("0014-D7")
def test_the_host_runs_ahead_of_collectives_that_only_the_stream_waits_for() -> None:
    ends: dict[bool, int] = {}
    for blocking in (True, False):
        seen: dict[int, Any] = {}
        with RuntimeContext(ranks=2) as torch:
            torch.multiprocessing.spawn(_reduce_thrice, args=(torch, seen, blocking), nprocs=2)
            reduced = sorted(spans(torch, "all_reduce"))
            added = sorted(
                (instance.starts_ps[0], instance.ends_ps[0])
                for instance in torch.op_log.instances
                if instance.template.name == "add" and instance.ranks == (0,)
            )
        # ((1 + 1) * 2 + 1) * 2 + 1) * 2
        assert [value for _, value, _ in seen.values()] == [22.0, 22.0]
        for collective, later in zip(reduced, added[1:], strict=False):
            assert later[0] >= collective[1], "a kernel started before its input was reduced"
        called, _, ends[blocking] = seen[0]
        # Six calls of 10 us of host time on ahbm, and nothing else, if only the stream waits.
        assert (called >= reduced[-1][1]) == blocking
    assert ends[False] <= ends[True]


def _disagree(rank: int, torch: Any) -> None:
    torch.ahbm.set_device(rank)
    torch.distributed.init_process_group(blocking_wait=False)
    torch.distributed.all_reduce(torch.ones(4 + rank))
    torch.ahbm.synchronize()


def test_an_error_of_a_collective_reaches_who_waits_for_the_stream() -> None:
    with pytest.raises(ExceptionGroup) as caught, RuntimeContext(ranks=2) as torch:
        torch.multiprocessing.spawn(_disagree, args=(torch,), nprocs=2)
    assert "the ranks' calls differ" in str(caught.value.exceptions[0])
