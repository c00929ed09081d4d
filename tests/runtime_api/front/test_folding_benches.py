"""Benches whose ranks do the same run one of them (ADR-0194); the oracle is the run of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernbench import ops
from kernbench.errors import UsageError
from kernbench.op_log import OpLog
from kernbench.retiming import placements_of_all
from kernbench.runtime_api import Folding, RankAxis, RuntimeContext, SpawnException, Timetable

Worker = Callable[[int, Any], None]
RANKS = 8


def ran(
    worker: Worker,
    machine: str,
    axes: tuple[RankAxis, ...] | None,
    *,
    keeps: bool = False,
    placements: Timetable | None = None,
) -> RuntimeContext:
    context = RuntimeContext(machine=machine, ranks=RANKS, data=False)
    if axes is not None:
        folding = Folding(RANKS, axes)
        folding.placements = placements
        folding.begin(context.run)
    if keeps:
        context.keep_actions()
    with context:
        context.multiprocessing.spawn(worker, args=(context,), nprocs=RANKS)
    return context


def commands(log: OpLog, rank: int) -> list[tuple[str, int, int]]:
    return sorted(
        (instance.template.name, instance.starts_ps[place], instance.ends_ps[place])
        for instance in log.instances
        for place, of in enumerate(instance.ranks)
        if of == rank
    )


def layers(rank: int, torch: Any) -> None:
    """Tensor parallelism over 4, replicas over 2, and a broadcast, which ranks end one by one."""
    torch.distributed.init_process_group()
    tp = [torch.distributed.new_group(range(first, first + 4)) for first in (0, 4)][rank // 4]
    dp = [torch.distributed.new_group([first, first + 4]) for first in range(4)][rank % 4]
    x = torch.ones((256, 256), dtype="float16")
    torch.distributed.broadcast(x, 0)
    for _ in range(2):
        y = ops.matmul(x, x)
        torch.distributed.all_reduce(y, group=tp)
        torch.distributed.all_reduce(x, group=dp)
    torch.ahbm.synchronize()


def stages(rank: int, torch: Any) -> None:
    """A pipeline of two stages, the ranks of which reduce what they have."""
    torch.distributed.init_process_group()
    pp = [torch.distributed.new_group([first, first + 4]) for first in range(4)][rank % 4]
    dp = [torch.distributed.new_group(range(first, first + 4)) for first in (0, 4)][rank // 4]
    x = torch.ones((256, 256), dtype="float16")
    if rank < 4:
        torch.distributed.send(x, rank + 4, group=pp)
    else:
        torch.distributed.recv(x, rank - 4, group=pp)
        x = ops.matmul(x, x)
    torch.distributed.all_reduce(x, group=dp)
    torch.ahbm.synchronize()


@pytest.mark.adr("0194-D1")
@pytest.mark.parametrize(
    ("worker", "machine", "axes"),
    [
        (layers, "ahbm:8", ()),
        (layers, "ahbm-mesh:8", ()),
        (stages, "ahbm-mesh:8", (RankAxis(4, 2),)),
    ],
)
def test_ranks_that_run_take_as_long_as_with_all(
    worker: Worker, machine: str, axes: tuple[RankAxis, ...]
) -> None:
    tried = ran(worker, machine, axes, keeps=True)
    result = ran(worker, machine, axes, placements=placements_of_all(tried))
    whole = ran(worker, machine, None).op_log
    folding = result.run.folding
    assert folding is not None
    assert folding.is_exact
    assert len(folding.running) == 1 + len(axes)
    for rank in folding.running:
        assert commands(result.op_log, rank) == commands(whole, rank)


def test_stages_that_one_rank_runs_for_are_found() -> None:
    with pytest.raises(SpawnException) as caught:
        ran(stages, "ahbm:8", ())
    assert "rank 4, which does not run" in str(caught.value.exceptions[0])


def sharing(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    torch.distributed.symmetric_memory.rendezvous(
        torch.distributed.symmetric_memory.empty((4,), dtype="float32")
    )


@pytest.mark.adr("0194-D2")
def test_memory_shared_with_ranks_that_do_not_run_is_refused() -> None:
    with pytest.raises(SpawnException) as caught:
        ran(sharing, "ahbm:8", ())
    assert "cannot be folded: it shares memory" in str(caught.value.exceptions[0])


def test_a_bench_with_fewer_ranks_than_the_world_is_refused() -> None:
    context = RuntimeContext(machine="ahbm:8", ranks=RANKS, data=False)
    Folding(RANKS).begin(context.run)
    with context, pytest.raises(UsageError, match="spawns 4 ranks of 8"):
        context.multiprocessing.spawn(layers, args=(context,), nprocs=4)
