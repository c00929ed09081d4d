"""What a launch meets on the device: the queue in front of it, and what the cache holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from kernbench.hardware import Machine, load_machine, parse_machine
from kernbench.runtime_api import RuntimeContext
from tests.interleaved.live_kernels import collatz
from tests.runtime_api.runtime_kernels import add_one

COUNT = 1 << 18


def machine_with(cache: bool = True, **sip: Any) -> Machine:
    data = load_machine("ahbm", 2).spec.model_dump(mode="json")
    data["sip"] |= sip
    if not cache:
        data["sip"]["cache"] = None
    return parse_machine(yaml.safe_dump(data), "test.yaml", 2)


def launch(x: Any, out: Any) -> None:
    add_one[(256,)](x, out, COUNT, BLOCK=1024)


def durations_ps(machine: Machine, program: Callable[[Any], None]) -> list[int]:
    """Return how long the kernels of a program took, in the order in which they ended."""
    with RuntimeContext(machine=machine, ranks=1, data=False) as torch:
        program(torch)
        torch.drain()
        return [
            instance.ends_ps[0] - instance.starts_ps[0]
            for instance in torch.op_log.instances
            if instance.template.kind == "kernel"
        ]


@pytest.mark.adr("0048-D1")
@pytest.mark.parametrize("idle", [True, False])
def test_a_launch_behind_another_one_pays_the_queued_front_end(idle: bool) -> None:
    machine = machine_with(cache=False, front_end_us=5, queued_front_end_us=1, host_launch_us=0.5)

    def program(torch: Any) -> None:
        x, out = torch.empty(COUNT), torch.empty(COUNT)
        launch(x, out)
        if idle:
            torch.ahbm.synchronize()
        launch(x, out)

    first, second = durations_ps(machine, program)
    assert first - second == (0 if idle else 4_000_000)


@pytest.mark.adr("0048-D1")
def test_a_launch_that_waits_for_the_pes_of_another_stream_was_queued_too() -> None:
    machine = machine_with(cache=False, front_end_us=5, queued_front_end_us=1, host_launch_us=0.5)

    def program(torch: Any) -> None:
        x, out = torch.empty(COUNT), torch.empty(COUNT)
        launch(x, out)
        with torch.ahbm.stream(torch.ahbm.Stream()):
            launch(x, out)

    first, second = durations_ps(machine, program)
    assert first - second == 4_000_000


@pytest.mark.adr("0048-D2")
@pytest.mark.parametrize("cache", [True, False])
def test_a_kernel_that_reads_what_the_last_one_wrote_is_faster_where_there_is_a_cache(
    cache: bool,
) -> None:
    def program(torch: Any) -> None:
        a, b, c, far = (torch.empty(COUNT) for _ in range(4))
        launch(a, b)
        torch.ahbm.synchronize()
        launch(b, c)
        torch.ahbm.synchronize()
        launch(far, a)

    first, warm, cold = durations_ps(machine_with(cache=cache), program)
    assert cold == first
    assert warm < 0.85 * first if cache else warm == first


@pytest.mark.adr("0048-D2")
def test_a_result_that_does_not_fit_in_the_cache_is_read_from_memory() -> None:
    def program(torch: Any) -> None:
        count = 1 << 26
        a, b, c = (torch.empty(count) for _ in range(3))
        for x, out in ((a, b), (b, c)):
            add_one[(count // 4096,)](x, out, count, BLOCK=4096)
            torch.ahbm.synchronize()

    first, second = durations_ps(machine_with(), program)
    assert first == second


@pytest.mark.adr("0048-D2")
@pytest.mark.parametrize("what", ["fill", "copy", "all_reduce"])
def test_fills_copies_and_collectives_leave_their_bytes_in_the_cache(what: str) -> None:
    with RuntimeContext(machine=machine_with(), ranks=2, data=False) as torch:

        def worker(rank: int) -> None:
            torch.distributed.init_process_group()
            x, other, out = (torch.empty(COUNT) for _ in range(3))
            if what == "fill":
                x.fill_(0)
            elif what == "copy":
                x.copy_(other)
            else:
                torch.distributed.all_reduce(x)
            torch.ahbm.synchronize()
            launch(x, out)
            torch.ahbm.synchronize()
            launch(torch.empty(COUNT), out)
            torch.ahbm.synchronize()

        torch.multiprocessing.spawn(worker, nprocs=2)
        warm, cold = (
            instance.template.duration_ps
            for instance in torch.op_log.instances
            if instance.template.kind == "kernel" and instance.ranks == (0,)
        )
    assert warm < cold


@pytest.mark.adr("0048-D2")
def test_a_kernel_that_decides_by_data_meets_the_cache_as_well() -> None:
    with RuntimeContext(machine=machine_with(), ranks=1) as torch:
        x, far, steps = (torch.full((4096,), 5, dtype="i32") for _ in range(3))
        flood = torch.zeros(1 << 26)
        torch.ahbm.synchronize()
        for operand in (x, x, far):
            collatz[(4096,)](operand, steps)
            torch.ahbm.synchronize()
        assert flood.shape == (1 << 26,)
        cold, warm, other = (
            instance.template.hbm_bytes
            for instance in torch.op_log.instances
            if instance.template.name == "collatz"
        )
    assert warm < cold == other


@pytest.mark.adr("0048-D3")
def test_layers_that_repeat_themselves_meet_schedules_that_are_known() -> None:
    """From the second layer on the state is the same, so nothing is scheduled again."""

    def templates(layers: int) -> int:
        with RuntimeContext(machine=machine_with(), ranks=1, data=False) as torch:
            x, y = torch.empty(COUNT), torch.empty(COUNT)
            for _ in range(layers):
                launch(x, y)
                launch(y, x)
            torch.drain()
            return len({id(instance.template) for instance in torch.op_log.instances})

    assert templates(2) == templates(30)


@pytest.mark.adr("0048-D3")
def test_benchmarks_measure_with_cold_caches_and_leave_no_trace() -> None:
    with RuntimeContext(machine=machine_with(), ranks=1, data=False) as torch:
        x, out = torch.empty(COUNT), torch.empty(COUNT)
        probe = torch.launcher.benchmark_ms
        before = probe(lambda: launch(x, out))
        launch(x, out)
        torch.ahbm.synchronize()
        assert probe(lambda: launch(x, out)) == before
        assert torch.run.devices.sip(0).cache.share(x.data_ptr(), x.data_ptr() + 4 * COUNT) == 1
