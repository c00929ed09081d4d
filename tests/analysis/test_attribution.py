"""Every picosecond of every rank is attributed once, and adds up to what the report says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench import RuntimeContext, ops
from kernbench.analysis import Spent, attribution
from kernbench.analysis.attribution import COPY, ENDED, IDLE, LINKS, RANKS, WAIT
from kernbench.analysis.resources import PEERS

HOST = {"host launch", "host operations", "host Python", "allocator", "host read", WAIT, IDLE, COPY}
COMM = {LINKS, RANKS, PEERS}


def uneven(rank: int, torch: Any) -> None:
    """Rank 1 computes longer, and rank 0 waits for it in a collective; copies overlap kernels."""
    torch.distributed.init_process_group()
    side = torch.ahbm.Stream()
    x = torch.randn(256, 256)
    for _ in range(1 + 4 * rank):
        x = x @ x
    y = x @ x
    with torch.ahbm.stream(side):
        ops.gelu(torch.randn(1024, 1024))
    torch.distributed.all_reduce(y)
    ops.gelu(y).numpy()


def of(torch: RuntimeContext) -> list[Spent]:
    return attribution(torch.op_log, torch.machine, torch.world_size)


def spawned(work: Callable[..., None], machine: str = "ahbm:2", ranks: int = 2) -> RuntimeContext:
    with RuntimeContext(machine=machine, ranks=ranks) as torch:
        torch.multiprocessing.spawn(work, (torch,), nprocs=ranks)
    return torch


@pytest.mark.adr("0153-D1")
@pytest.mark.parametrize("machine", ["ahbm:2", "h100-sxm:2"])
def test_the_time_of_each_rank_adds_up_to_that_of_the_run_and_its_parts_to_the_reports(
    machine: str,
) -> None:
    torch = spawned(uneven, machine)
    report: Any = torch.report()
    result = of(torch)
    for item in report["per_rank"]:
        mine = [spent for spent in result if spent.rank == item["rank"]]
        assert all(spent.time_ps > 0 for spent in mine)

        def total(resources: set[str], of: list[Spent] = mine) -> int:
            return sum(spent.time_ps for spent in of if spent.resource in resources)

        assert sum(spent.time_ps for spent in mine) == torch.op_log.end_ps
        assert total({ENDED}) == torch.op_log.end_ps - round(1000 * item["time_ns"])
        assert total(COMM) == round(1000 * item["comm_exposed_ns"])
        assert total(HOST) == round(1000 * item["idle_ns"])


@pytest.mark.adr("0153-D1")
def test_who_comes_first_to_a_collective_waits_for_the_last_at_the_line_of_its_call() -> None:
    torch = spawned(uneven)
    late = [item for item in of(torch) if item.resource == RANKS]
    assert [(item.rank, item.detail, item.name) for item in late] == [(0, "rank 1", "all_reduce")]
    file, line = late[0].site
    assert file == __file__
    assert "all_reduce" in Path(file).read_text().splitlines()[line - 1]
    (reduced,) = (
        instance for instance in torch.op_log.instances if instance.template.kind == "collective"
    )
    assert late[0].time_ps <= reduced.starts_ps[1] - reduced.starts_ps[0]


@pytest.mark.adr("0153-D2")
def test_a_kernels_time_is_its_longest_limits_and_latency() -> None:
    with RuntimeContext(machine="h100-sxm:1", data=False) as torch:
        x = torch.zeros(8192, 8192, dtype="f16")
        ops.gelu(x)
        x @ x
    spent = {(item.name, item.resource): item.time_ps for item in of(torch)}
    templates = {instance.template.name: instance.template for instance in torch.op_log.instances}
    for name, limit in (("gelu", "HBM"), ("matmul", "GEMM")):
        own = {resource: ps for (kernel, resource), ps in spent.items() if kernel == name}
        own.pop("host launch", None)
        assert max(own, key=lambda resource: own[resource]) == limit
        assert own[limit] == templates[name].limits_ps[limit]  # type: ignore[index]
        assert sum(own.values()) == templates[name].duration_ps
