"""Ranks that die, and starting all of them again."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench import RuntimeContext, ops
from kernbench.errors import RankDiedError, UsageError
from kernbench.hardware import Machine, load_machine, set_keys
from kernbench.runtime_api import SpawnException, with_restarts

RANKS = 3


def dying(deaths: str, restart_s: float = 2) -> Machine:
    settings = [f"scenario.deaths={deaths}", f"scenario.restart_s={restart_s}"]
    return set_keys(load_machine("ahbm:4"), settings)[0]


class Training:
    """Steps that double a number on all ranks; rank 0 keeps it after every second step."""

    def __init__(self) -> None:
        self.kept = (0, 1.0)
        self.started: list[int] = []
        self.results: list[float] = []

    def work(self, rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        first, value = self.kept
        self.started.append(first)
        x = torch.full((256, 256), value)
        for step in range(first, 8):
            x = ops.add(x, x)
            torch.distributed.all_reduce(x, op="max")
            if step % 2:
                item = x[0, 0].item()
                torch.distributed.barrier()
                if rank == 0:
                    self.kept = (step + 1, item)
        self.results.append(x[0, 0].item())

    def run(self, torch: Any) -> None:
        torch.multiprocessing.spawn(self.work, (torch,), nprocs=RANKS)


@pytest.mark.adr("0176-D5")
def test_a_program_resumes_where_its_own_checkpoint_says() -> None:
    training = Training()
    with RuntimeContext(
        dying("[{rank: 1, at_s: 0.00005}, {rank: 0, at_s: 2.0001}]"), RANKS
    ) as torch:
        with_restarts(torch, lambda _: training.run(torch), 2)
    assert training.results == [256.0] * RANKS
    starts = training.started[::RANKS]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert starts[2] > 0
    assert 4 * 10**12 < torch.op_log.end_ps < 4.001 * 10**12
    restarts = [host_span for host_span in torch.op_log.host_spans if host_span.kind == "restart"]
    assert [restart.rank for restart in restarts] == [0, 1, 2, 0, 1, 2]
    assert {restart.end_ps - restart.start_ps for restart in restarts} == {2 * 10**12}
    said = [line for ask in torch.run.remarks for line in ask()]
    died = "rank 1 died at 5e-05 s, as scenario.deaths says"
    assert f"restart 1 of 2 at 2.00005 s, as of 5e-05 s: {died}" in said


@pytest.mark.adr("0176-D5")
def test_without_restarts_a_death_is_an_error_that_names_rank_and_time() -> None:
    training = Training()
    with (
        RuntimeContext(dying("[{rank: 1, at_s: 0.00005}]"), RANKS) as torch,
        pytest.raises(SpawnException) as raised,
    ):
        training.run(torch)
    assert list(raised.value.errors) == [1]
    with pytest.raises(RankDiedError, match=r"rank 1 died at 5e-05 s, .*--max-restarts"):
        raise raised.value.errors[1]
    # What ran on devices then has ended.
    assert 50 * 10**6 <= torch.run.simulation.now_ps < 60 * 10**6


@pytest.mark.adr("0176-D5")
def test_a_twin_without_deaths_is_not_started_again() -> None:
    training = Training()
    with RuntimeContext("ahbm:4", RANKS) as torch:
        with_restarts(torch, lambda _: training.run(torch), 2)
    assert training.started == [0] * RANKS
    assert training.results == [256.0] * RANKS


@pytest.mark.adr("0176-D5")
def test_programs_that_raise_are_started_again_and_mistakes_are_not() -> None:
    tries = []

    def fails(error: Exception, most: int) -> None:
        def work(rank: int) -> None:
            tries.append(rank)
            if rank == 1:
                raise error

        with RuntimeContext("ahbm:4", 2) as torch:
            with_restarts(torch, lambda _: torch.multiprocessing.spawn(work, (), nprocs=2), most)

    with pytest.raises(SpawnException, match=r"1 \(ValueError\)"):
        fails(ValueError("bad batch"), 2)
    assert tries == [0, 1] * 3
    tries.clear()
    with pytest.raises(SpawnException, match=r"1 \(UsageError\)"):
        fails(UsageError("a mistake"), 2)
    assert tries == [0, 1]


def test_a_death_of_a_rank_that_is_not_there_is_refused() -> None:
    with (
        RuntimeContext(dying("[{rank: 3, at_s: 1}]"), RANKS) as torch,
        pytest.raises(UsageError, match=r"names rank 3, but 3 ranks were started \(0 to 2\)"),
    ):
        Training().run(torch)
