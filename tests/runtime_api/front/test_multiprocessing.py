"""spawn (T4): torch's shape, binding, and what is raised when ranks fail."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pytest

from kernbench.errors import DeadlockError, RankFailedError, UsageError
from kernbench.runtime_api import RuntimeContext, SpawnContext, SpawnException, current_context


def spawn(fn, nprocs: int, **options):
    with RuntimeContext(ranks=nprocs, **options) as torch:
        torch.multiprocessing.spawn(fn, args=(torch,), nprocs=nprocs)


def test_more_ranks_than_were_asked_for_are_ranks_of_the_run() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.zeros(4).copy_(torch.ones(4) * rank)

    for asked in (None, 3):
        with RuntimeContext("ahbm", ranks=asked) as torch:
            assert torch.world_size == (asked or 1)
            torch.multiprocessing.spawn(worker, args=(torch,), nprocs=4)
            report = torch.report()
        assert (torch.world_size, report["ranks"]) == (4, 4)
        assert all(item["compute_ns"] for item in report["per_rank"])


@pytest.mark.adr("0027-D1")
def test_the_signature_is_the_one_written_down() -> None:
    with RuntimeContext() as torch:
        assert str(inspect.signature(torch.multiprocessing.spawn)).split(" -> ")[0] == (
            "(fn: 'Callable[..., Any]', args: 'tuple[Any, ...]' = (), nprocs: 'int' = 1, "
            "join: 'bool' = True, daemon: 'bool' = False, start_method: 'str' = 'spawn')"
        )


@pytest.mark.adr("0027-D1")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_signature_is_torchs() -> None:
    import torch.multiprocessing

    theirs = inspect.signature(torch.multiprocessing.spawn).parameters
    with RuntimeContext() as ours:
        mine = inspect.signature(ours.multiprocessing.spawn).parameters
    assert [(p.name, p.default, p.kind) for p in mine.values()] == [
        (p.name, p.default, p.kind) for p in theirs.values()
    ]


@pytest.mark.adr("0027-D1")
def test_every_rank_gets_its_number_and_the_arguments() -> None:
    seen = []
    with RuntimeContext(ranks=3) as torch:
        result = torch.multiprocessing.spawn(
            lambda rank, a, b: seen.append((rank, a, b)), args=(1, "x"), nprocs=3
        )
    assert result is None
    assert seen == [(0, 1, "x"), (1, 1, "x"), (2, 1, "x")]


@pytest.mark.adr("0024-D1", "0024-D10")
def test_a_rank_is_bound_to_its_sip_and_set_device_changes_that() -> None:
    seen = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        before = (torch.ahbm.current_device(), torch.empty(1).sip_id)
        torch.ahbm.set_device(3 - rank)
        seen.append((rank, before, torch.ahbm.current_device(), str(torch.empty(1).device)))

    spawn(worker, 4)
    assert seen == [(r, (r, r), 3 - r, f"ahbm:{3 - r}") for r in range(4)]


@pytest.mark.adr("0024-D10")
@pytest.mark.parametrize(
    ("device", "message"),
    [
        (2, "SIP 2 does not exist: this machine has 2 SIPs"),
        (-1, "SIP -1 does not exist: this machine has 2 SIPs"),
        ("ahbm:7", "SIP 7 does not exist"),
        ("cuda:7", "SIP 7 does not exist"),
        ("xpu:0", "device must be 'ahbm', 'ahbm:N', 'cuda', 'cuda:N', but got 'xpu:0'"),
        ("cuda:x", "but got 'cuda:x'"),
        (1.5, "but got 1.5"),
    ],
)
def test_a_sip_that_is_not_there_is_refused_with_both_numbers(device, message: str) -> None:
    with RuntimeContext(ranks=2) as torch, pytest.raises(ValueError, match=message):
        torch.ahbm.set_device(device)


@pytest.mark.adr("0024-D1")
def test_two_ranks_cannot_choose_one_sip() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.ahbm.set_device(1)

    with pytest.raises(SpawnException) as caught:
        spawn(worker, 2)
    assert "rank 1 cannot be bound to SIP 1: rank 0 already is" in str(caught.value.exceptions[0])


@pytest.mark.adr("0027-D1")
def test_a_rank_that_raises_ends_the_others_and_their_finally_blocks_run() -> None:
    cleaned = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.distributed.init_process_group()
        if rank == 2:
            raise ZeroDivisionError("rank two's own")
        try:
            torch.distributed.barrier()
        except SystemExit:
            cleaned.append((rank, "exit"))
            raise
        finally:
            torch.zeros(4)
            cleaned.append((rank, "finally"))

    with pytest.raises(SpawnException, match=r"rank 2 \(ZeroDivisionError\) failed") as caught:
        spawn(worker, 4)
    (cause,) = caught.value.exceptions
    assert isinstance(cause, ZeroDivisionError)
    assert caught.value.errors == {2: cause}
    assert cause.__notes__[0] == "in rank 2 on SIP 2"
    assert cause.__traceback__ is not None
    frames = []
    where: TracebackType | None = cause.__traceback__
    while where is not None:
        frames.append(where.tb_frame.f_code.co_name)
        where = where.tb_next
    assert frames[-1] == "worker"
    assert sorted(cleaned) == [(r, s) for r in (0, 1, 3) for s in ("exit", "finally")]


@pytest.mark.adr("0027-D1")
def test_the_root_cause_comes_first_then_who_waited_for_it() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.distributed.init_process_group()
        if rank == 1:
            torch.ahbm.synchronize()
            torch.run.simulation.sleep(10**9)
            raise KeyError("lost")
        torch.distributed.barrier()

    with pytest.raises(SpawnException) as caught:
        spawn(worker, 3)
    (cause,) = caught.value.exceptions
    assert isinstance(cause, KeyError)
    first, *waited = cause.__notes__
    assert first == "in rank 1 on SIP 1"
    assert [line.split(",")[0] for line in waited] == [
        "rank 0  barrier #1 on group world",
        "rank 2  barrier #1 on group world",
    ]
    assert all("waits for rank 1, since" in line for line in waited)
    assert all("test_multiprocessing.py:" in line for line in waited)


@pytest.mark.adr("0027-D1")
def test_ranks_that_fail_at_the_same_time_are_all_root_causes() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.run.simulation.sleep(100)
        if rank != 1:
            raise ValueError(f"of rank {rank}")
        torch.run.simulation.sleep(100)

    with pytest.raises(SpawnException, match=r"ranks 0 .*, 2 .* failed") as caught:
        spawn(worker, 3)
    assert {r: str(e) for r, e in caught.value.errors.items()} == {0: "of rank 0", 2: "of rank 2"}


@pytest.mark.adr("0027-D1")
def test_what_a_sibling_raises_while_it_is_ended_is_a_note_and_no_cause() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.distributed.init_process_group()
        if rank == 0:
            raise ZeroDivisionError("cause")
        try:
            torch.distributed.barrier()
        finally:
            raise KeyError("clean-up went wrong")

    with pytest.raises(SpawnException) as caught:
        spawn(worker, 2)
    (cause,) = caught.value.exceptions
    assert isinstance(cause, ZeroDivisionError)
    assert any(
        "rank 1 raised KeyError while it was ended" in note and "clean-up went wrong" in note
        for note in cause.__notes__
    )


def test_a_collective_called_while_cleaning_up_is_refused_and_is_no_cause() -> None:
    refused = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.distributed.init_process_group()
        if rank == 0:
            raise ZeroDivisionError
        try:
            torch.distributed.barrier()
        finally:
            try:
                torch.distributed.barrier()
            except RankFailedError as error:
                refused.append(str(error))
                raise

    with pytest.raises(SpawnException) as caught:
        spawn(worker, 2)
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]
    assert "rank 1 is being ended" in refused[0]


def test_sys_exit_is_a_return_and_with_a_code_a_failure() -> None:
    spawn(lambda rank, torch: sys.exit(), 2)
    with pytest.raises(SpawnException) as caught:
        spawn(lambda rank, torch: sys.exit(3 if rank else 0), 2)
    assert "rank 1 called sys.exit(3)" in str(caught.value.exceptions[0])


@pytest.mark.parametrize("in_rank", [True, False])
def test_an_interrupt_passes_through_and_leaves_no_rank(in_rank: bool) -> None:
    cleaned = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        try:
            if rank == 1:
                if in_rank:
                    raise KeyboardInterrupt
                timer = torch.run.simulation.timer(5)
                timer.callbacks.append(interrupt)
            torch.run.simulation.sleep(1000)
        finally:
            cleaned.append(rank)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), RuntimeContext(ranks=2) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)
    assert sorted(cleaned) == [0, 1]
    assert not any(rank.alive for rank in torch.run.simulation.ranks)


def test_without_join_the_ranks_run_when_they_are_joined() -> None:
    seen: list[int] = []
    with RuntimeContext(ranks=2) as torch:
        context = torch.multiprocessing.spawn(seen.append, nprocs=2, join=False)
        assert isinstance(context, SpawnContext)
        assert seen == []
        assert context.join() is True
        assert context.join() is True
    assert seen == [0, 1]


def test_the_ranks_of_a_spawn_are_its_processes() -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            sys.exit(0)

    with RuntimeContext(ranks=2) as torch:
        context = torch.multiprocessing.spawn(worker, nprocs=2, join=False)
        assert context is not None
        processes = context.processes
        assert [process.name for process in processes] == ["SpawnProcess-1", "SpawnProcess-2"]
        assert [process.is_alive() for process in processes] == [True, True]
        assert [process.exitcode for process in processes] == context.pids() == [None, None]
        context.join()
        assert [process.is_alive() for process in processes] == [False, False]
        assert [process.exitcode for process in processes] == [0, 0]
        # There is nothing left to end.
        processes[0].terminate()


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_process_of_a_spawn_that_is_ended_fails_it(how: str) -> None:
    cleaned: list[int] = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        try:
            torch.run.simulation.sleep(100)
        finally:
            cleaned.append(rank)

    with RuntimeContext(ranks=2) as torch:
        context = torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2, join=False)
        assert context is not None
        torch.run.simulation.sleep(1)
        getattr(context.processes[1], how)()
        with pytest.raises(SpawnException, match=r"rank 1 \(RankDiedError\) failed") as caught:
            context.join()
    assert f"ended by the program, which called {how}()" in str(caught.value.errors[1])
    # As the signal of the one, and of who ends the other.
    assert [process.exitcode for process in context.processes] == [-15, -15]
    assert sorted(cleaned) == [0, 1]


def test_ranks_that_were_never_joined_run_before_the_run_ends() -> None:
    seen: list[int] = []
    with RuntimeContext(ranks=2) as torch:
        torch.multiprocessing.spawn(seen.append, nprocs=2, join=False)
    assert seen == [0, 1]


@pytest.mark.parametrize("again", [False, True])
def test_ranks_that_fail_unjoined_are_not_forgotten(again: bool) -> None:
    def worker(rank: int) -> None:
        raise ZeroDivisionError

    def run() -> None:
        with RuntimeContext(ranks=2) as torch:
            torch.multiprocessing.spawn(worker, nprocs=2, join=False)
            if again:
                torch.run.simulation.sleep(1)
                torch.multiprocessing.spawn(print, nprocs=2)

    with pytest.raises(SpawnException):
        run()


def test_a_deadlock_while_cleaning_up_does_not_hide_the_cause() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        if rank == 0:
            raise ZeroDivisionError
        try:
            torch.run.simulation.sleep(100)
        finally:
            torch.wait(torch.run.simulation.handle("a message"))

    with pytest.raises(SpawnException) as caught:
        spawn(worker, 2)
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]


def test_a_spawn_exception_can_be_split_and_caught_by_kind() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.run.simulation.sleep(1)
        raise [KeyError, ValueError][rank]("of its own")

    with pytest.raises(SpawnException) as caught:
        spawn(worker, 2)
    matched, rest = caught.value.split(KeyError)
    assert matched is not None
    assert rest is not None
    assert [type(error) for error in matched.exceptions] == [KeyError]
    assert [type(error) for error in rest.exceptions] == [ValueError]
    assert caught.value.args == (caught.value.errors,)


def test_a_run_that_fails_ends_the_ranks_that_were_never_joined() -> None:
    seen: list[int] = []
    torch = RuntimeContext(ranks=2)

    def run() -> None:
        with torch:
            torch.multiprocessing.spawn(seen.append, nprocs=2, join=False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert seen == []
    assert not any(rank.alive for rank in torch.run.simulation.ranks)


def test_a_run_may_spawn_again_and_ranks_do_not_see_the_ones_before() -> None:
    sums = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.distributed.init_process_group()
        x = torch.ones(1)
        torch.distributed.all_reduce(x)
        sums.append(x.item())

    with RuntimeContext(ranks=4) as torch:
        for nprocs in (4, 2, 3):
            torch.multiprocessing.spawn(worker, args=(torch,), nprocs=nprocs)
            assert sums == [nprocs] * nprocs
            sums.clear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nprocs": 5}, "asked for 5 ranks, but machine ahbm has 4 SIPs"),
        ({"nprocs": 0}, "nprocs must be at least 1, but got 0"),
        ({"nprocs": "2"}, "nprocs must be at least 1, but got '2'"),
        ({"start_method": "thread"}, "start_method must be one of spawn, fork, forkserver"),
        ({"fn": None}, "needs a function to run, but got None"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with RuntimeContext(ranks=4) as torch, pytest.raises(UsageError, match=message):
        torch.multiprocessing.spawn(**{"fn": print, **options})


def test_a_rank_cannot_spawn_and_two_spawns_cannot_overlap() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        with pytest.raises(UsageError, match="was called by rank 0"):
            torch.multiprocessing.spawn(print)

    with RuntimeContext(ranks=1) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,))
        context = torch.multiprocessing.spawn(worker, args=(torch,), join=False)
        with pytest.raises(UsageError, match="a spawn is in progress"):
            torch.multiprocessing.spawn(worker, args=(torch,))
        assert context is not None
        context.join()


def test_a_rank_that_waits_for_ever_in_a_finally_block_does_not_hang_the_run() -> None:
    cleaned = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        try:
            torch.wait(torch.run.simulation.handle("a message"))
        finally:
            try:
                torch.wait(torch.run.simulation.handle("another message"))
            finally:
                cleaned.append(rank)

    with pytest.raises(DeadlockError, match="a message, since"):
        spawn(worker, 2)
    assert sorted(cleaned) == [0, 1]


def test_a_rank_knows_its_run() -> None:
    seen = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.run.simulation.sleep(1)
        seen.append(current_context() is torch)

    spawn(worker, 2)
    assert seen == [True, True]
    with pytest.raises(UsageError, match="there is no run here"):
        current_context()


@pytest.mark.parametrize("ends_by", ["a join", "an error", "the end of the run"])
@pytest.mark.parametrize("young", [500, 0])
def test_garbage_is_looked_for_as_often_as_in_processes_of_their_own(
    young: int, ends_by: str
) -> None:
    seen = []

    def worker(rank: int) -> None:
        seen.append(gc.get_threshold())
        if ends_by == "an error":
            raise ValueError("stop")

    before = gc.get_threshold()
    gc.set_threshold(young, 11, 12)
    try:
        with contextlib.suppress(Exception), RuntimeContext("ahbm:3", ranks=3) as torch:
            torch.multiprocessing.spawn(worker, nprocs=3, join=ends_by != "the end of the run")
            assert gc.get_threshold() == (
                (young * 3, 11, 12) if ends_by == "the end of the run" else (young, 11, 12)
            )
        assert gc.get_threshold() == (young, 11, 12)
    finally:
        gc.set_threshold(*before)
    assert set(seen) == {(young * 3, 11, 12)}


def test_a_threshold_that_a_rank_sets_stays() -> None:
    before = gc.get_threshold()
    try:
        with RuntimeContext("ahbm:2", ranks=2) as torch:
            torch.multiprocessing.spawn(lambda rank: gc.set_threshold(300 + rank), nprocs=2)
        assert gc.get_threshold()[0] == 301
    finally:
        gc.set_threshold(*before)


def test_a_rank_whose_function_runs_nothing_is_refused() -> None:
    async def waits(rank: int) -> None:
        raise AssertionError

    def yields(rank: int) -> Iterator[None]:
        raise AssertionError
        yield

    with RuntimeContext(machine="ahbm", ranks=2) as torch:
        for fn, kind in ((waits, "coroutine"), (yields, "generator")):
            with pytest.raises(UsageError, match=f"{fn.__name__}, a {kind} function; calling it"):
                torch.multiprocessing.spawn(fn, nprocs=2)
            with pytest.raises(SpawnException) as failed:
                torch.multiprocessing.spawn(lambda rank, fn=fn: fn(rank), nprocs=2)
            assert f"returned a {kind}" in str(failed.value.errors[1])
