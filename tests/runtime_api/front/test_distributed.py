"""torch.distributed: results against numpy, and every mistake that ranks can make together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import (
    CollectiveMismatchError,
    DeadlockError,
    KernbenchError,
    UnknownNameError,
    UsageError,
)
from kernbench.runtime_api import RuntimeContext, SpawnException
from tests.runtime_api.runtime_kernels import add_one
from tests.tiers import examples


def on_ranks(nprocs: int, body, **options) -> list[Any]:
    """Return what ``body(torch, dist, rank)`` returns on each rank of a world."""
    results = [None] * nprocs
    with RuntimeContext(ranks=nprocs, **options) as torch:

        def worker(rank: int) -> None:
            torch.distributed.init_process_group()
            results[rank] = body(torch, torch.distributed, rank)

        torch.multiprocessing.spawn(worker, nprocs=nprocs)
    return results


REDUCE: dict[str, Any] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "avg": lambda x, axis: np.sum(x, axis=axis) // len(x),
}


@examples(40)
@given(
    world=st.integers(1, 7),
    count=st.integers(0, 40),
    op=st.sampled_from(sorted(REDUCE)),
    asynchronous=st.booleans(),
)
def test_all_reduce_is_numpys_on_any_world_and_size(
    world: int, count: int, op: str, asynchronous: bool
) -> None:
    # Small whole numbers: every order of reduction gives the same.
    inputs = np.random.default_rng(count).integers(1, 4, (world, count)).astype(np.int64)

    def body(torch, dist, rank):
        x = torch.from_numpy(inputs[rank])
        work = dist.all_reduce(x, op=op, async_op=asynchronous)
        if asynchronous:
            assert work.wait()
            assert work.is_completed()
            assert work.is_success()
        else:
            assert work is None
        return x.tolist()

    expected = REDUCE[op](inputs, axis=0).tolist()
    assert on_ranks(world, body) == [expected] * world


def test_every_rank_ends_with_the_same_bits() -> None:
    inputs = np.random.default_rng(0).standard_normal((5, 999)).astype(np.float16)

    def body(torch, dist, rank):
        x = torch.from_numpy(inputs[rank])
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        return x.numpy().tobytes()

    results = on_ranks(5, body)
    assert len(set(results)) == 1
    got = np.frombuffer(results[0], dtype=np.float16).astype(np.float64)
    assert np.allclose(got, inputs.astype(np.float64).mean(axis=0), atol=5e-3)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_gather_scatter_and_broadcast_are_numpys(world: int) -> None:
    data = np.arange(world * world * 6, dtype=np.float32).reshape(world, world * 6)

    def body(torch, dist, rank):
        mine = torch.from_numpy(data[rank])
        whole = torch.empty(world, world * 6)
        dist.all_gather_into_tensor(whole, mine)
        parts = [torch.empty(world * 6) for _ in range(world)]
        dist.all_gather(parts, mine)
        part = torch.empty(6)
        dist.reduce_scatter_tensor(part, mine)
        again = torch.empty(2, 3)
        dist.reduce_scatter(again, [piece.reshape(2, 3) for piece in mine.chunk(world)], op="max")
        sent = mine.clone()
        dist.broadcast(sent, src=world - 1)
        return [t.numpy() for t in (whole, torch.cat(parts), part, again.reshape(6), sent, mine)]

    for rank, got in enumerate(on_ranks(world, body)):
        own = slice(6 * rank, 6 * rank + 6)
        expected = [
            data,
            data.reshape(-1),
            data[:, own].sum(axis=0),
            data[:, own].max(axis=0),
            data[-1],
            data[rank],
        ]
        for mine, theirs in zip(got, expected, strict=True):
            assert np.array_equal(mine, theirs)


def test_send_and_receive_meet_in_order_and_by_tag() -> None:
    def body(torch, dist, rank):
        if rank == 0:
            works = [dist.isend(torch.full((2,), i), dst=1, tag=i % 2) for i in range(4)]
            for work in works:
                work.wait()
            return None
        got = []
        for tag in (1, 1, 0, 0):
            x = torch.zeros(2, dtype="i64")
            assert dist.recv(x, src=0, tag=tag) == 0
            got.append(x[0].item())
        return got

    assert on_ranks(2, body)[1] == [1, 3, 0, 2]


def test_ranks_of_a_ring_pass_their_tensors_on() -> None:
    def body(torch, dist, rank):
        x, y = torch.full((3,), rank), torch.zeros(3, dtype="i64")
        works = [dist.isend(x, (rank + 1) % 5), dist.irecv(y, (rank - 1) % 5)]
        for work in works:
            work.wait()
        return y.tolist()

    assert on_ranks(5, body) == [[(rank - 1) % 5] * 3 for rank in range(5)]


def test_sub_groups_work_beside_each_other() -> None:
    def body(torch, dist, rank):
        pairs = [dist.new_group([0, 1]), dist.new_group([3, 2])]
        mine = pairs[rank // 2]
        x = torch.full((4,), 10**rank)
        dist.all_reduce(x, group=mine)
        other = pairs[1 - rank // 2]
        assert dist.get_rank(other) == -1
        with pytest.raises(ValueError, match=rf"rank {rank} is not in group .* has ranks \[") as no:
            dist.all_reduce(x, group=other)
        assert isinstance(no.value, KernbenchError)
        gathered = torch.empty(8, dtype="i64")
        dist.all_gather_into_tensor(gathered, x, group=mine)
        y = torch.full((1,), rank)
        dist.broadcast(y, src=[0, 3][rank // 2], group=mine)
        return x.tolist(), dist.get_rank(mine), dist.get_world_size(mine), y.item()

    assert on_ranks(4, body) == [
        ([11] * 4, 0, 2, 0),
        ([11] * 4, 1, 2, 0),
        ([1100] * 4, 1, 2, 3),
        ([1100] * 4, 0, 2, 3),
    ]


def test_a_barrier_holds_everybody_until_the_last_has_come() -> None:
    def body(torch, dist, rank):
        torch.run.simulation.sleep(10**9 * rank)
        dist.barrier()
        return torch.run.simulation.now_ps

    assert min(on_ranks(3, body)) >= 2 * 10**9


@pytest.mark.adr("0024-D4")
def test_a_collective_waits_for_the_stream_and_kernels_after_it_overlap() -> None:
    def body(torch, dist, rank):
        big = torch.empty(1 << 20)
        x, y, out = torch.ones(1 << 16), torch.ones(1 << 16), torch.empty(1 << 16)
        torch.ahbm.synchronize()
        before = torch.launch("before", add_one, y, x, 1 << 16, grid=(512,), BLOCK=128)
        work = dist.all_reduce(big, async_op=True)
        after = torch.launch("after", add_one, y, out, 1 << 16, grid=(512,), BLOCK=128)
        torch.wait(after)
        assert not work.is_completed()
        work.wait()
        return before.end_ps, work.ready_ps, after.start_ps

    for before_end, ready, after_start in on_ranks(2, body, data=False):
        assert ready >= before_end
        assert after_start >= before_end


def test_a_kernel_before_a_collective_is_seen_by_it_and_one_after_it_sees_it() -> None:
    def body(torch, dist, rank):
        x, out = torch.full((64,), float(rank)), torch.empty(64)
        add_one[(1,)](x, x, 64, BLOCK=64)
        dist.all_reduce(x)
        add_one[(1,)](x, out, 64, BLOCK=64)
        return out.tolist()

    assert on_ranks(3, body) == [[7.0] * 64] * 3


def test_one_log_entry_per_collective_has_every_ranks_times() -> None:
    with RuntimeContext(ranks=3, data=False) as torch:

        def worker(rank: int) -> None:
            torch.distributed.init_process_group()
            torch.run.simulation.sleep(rank * 1000)
            torch.distributed.all_reduce(torch.empty(300))

        torch.multiprocessing.spawn(worker, nprocs=3)
        (entry,) = [i for i in torch.op_log.instances if i.template.kind == "collective"]
    assert entry.ranks == entry.sips == (0, 1, 2)
    assert [start - entry.starts_ps[0] for start in entry.starts_ps] == [0, 1000, 2000]
    assert all(end > max(entry.starts_ps) for end in entry.ends_ps)
    assert (entry.template.name, entry.template.algorithm) == ("all_reduce", "one_shot")


def test_an_algorithm_can_be_named() -> None:
    with RuntimeContext(ranks=2) as torch:

        def worker(rank: int) -> None:
            torch.distributed.init_process_group()
            x = torch.ones(4)
            torch.distributed.all_reduce(x, algorithm="tree")
            assert x.tolist() == [2.0] * 4

        torch.multiprocessing.spawn(worker, nprocs=2)
        assert "tree" in {entry.template.algorithm for entry in torch.op_log.instances}


MISMATCHES = {
    "op": lambda torch, dist, rank: dist.barrier() if rank else dist.all_reduce(torch.ones(2)),
    "shape": lambda torch, dist, rank: dist.all_reduce(torch.ones(2 + rank)),
    "dtype": lambda torch, dist, rank: dist.all_reduce(
        torch.ones(2, dtype=["f16", "f32"][rank % 2])
    ),
    "reduce op": lambda torch, dist, rank: dist.all_reduce(torch.ones(2), ["sum", "max"][rank % 2]),
    "root": lambda torch, dist, rank: dist.broadcast(torch.ones(2), src=rank % 2),
}


@pytest.mark.adr("0024-D5")
@pytest.mark.parametrize("what", sorted(MISMATCHES))
def test_calls_that_differ_are_an_error_on_every_rank_that_lists_them_all(what: str) -> None:
    with pytest.raises(SpawnException) as caught:
        on_ranks(3, MISMATCHES[what])
    assert sorted(caught.value.errors) == [0, 1, 2]
    texts = {str(error) for error in caught.value.exceptions}
    assert all(isinstance(error, CollectiveMismatchError) for error in caught.value.exceptions)
    (text,) = texts
    title, *lines = text.splitlines()
    assert title.startswith("the ranks' calls differ at ")
    assert [line.split()[:2] for line in lines] == [["rank", str(rank)] for rank in range(3)]
    assert all("test_distributed.py:" in line for line in lines)


def test_the_text_of_a_mismatch() -> None:
    with pytest.raises(SpawnException) as caught:
        on_ranks(2, MISMATCHES["shape"])
    lines = [line.rsplit("    ", 1)[0] for line in str(caught.value.exceptions[0]).splitlines()]
    assert lines == [
        "the ranks' calls differ at all_reduce #1 on group world; "
        "every rank must make the same call:",
        "  rank 0  all_reduce(sum) of (2,) float32",
        "  rank 1  all_reduce(sum) of (3,) float32",
    ]


def test_a_send_and_a_receive_that_do_not_fit_are_an_error_on_both() -> None:
    def body(torch, dist, rank):
        if rank:
            dist.recv(torch.ones(3), src=0)
        else:
            dist.send(torch.ones(2), dst=1)

    with pytest.raises(SpawnException) as caught:
        on_ranks(2, body)
    assert [type(error) for error in caught.value.exceptions] == [CollectiveMismatchError] * 2
    assert "differ at send #1 from rank 0 to rank 1" in str(caught.value.exceptions[0])


def test_the_same_call_at_different_lines_is_fine() -> None:
    def body(torch, dist, rank):
        x = torch.ones(2)
        if rank:
            dist.all_reduce(x)
        else:
            dist.all_reduce(x)
        return x.tolist()

    assert on_ranks(2, body) == [[2.0, 2.0]] * 2


def test_a_rank_that_catches_the_mismatch_goes_on() -> None:
    def body(torch, dist, rank):
        with pytest.raises(CollectiveMismatchError):
            dist.all_reduce(torch.ones(2 + rank))
        x = torch.ones(2)
        dist.all_reduce(x)
        return x.tolist()

    assert on_ranks(2, body) == [[2.0, 2.0]] * 2


@pytest.mark.adr("0024-D6")
def test_a_rank_that_returns_early_is_named_first_then_who_waits_for_it() -> None:
    def body(torch, dist, rank):
        if rank != 2:
            dist.all_reduce(torch.ones(4))

    with pytest.raises(DeadlockError) as caught:
        on_ranks(4, body)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("nothing can wake ranks 0, 1 and 3 at ")
    assert lines[1] == "  rank 2  finished at 0.000 us"
    for line, rank in zip(lines[2:], (0, 1, 3), strict=True):
        assert line.startswith(
            f"  rank {rank}  all_reduce #1 on group world, waits for rank 2, since"
        )
        assert line.split()[-1].startswith("test_distributed.py:")


@pytest.mark.adr("0024-D6")
def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    cleaned = []

    def body(torch, dist, rank):
        x = torch.ones(2)
        try:
            if rank == 0:
                dist.recv(x, src=1)
            else:
                dist.barrier()
        finally:
            cleaned.append(rank)

    with pytest.raises(DeadlockError) as caught:
        on_ranks(2, body)
    text = str(caught.value)
    assert "rank 0  recv #1 from rank 1, waits for rank 1" in text
    assert "rank 1  barrier #1 on group world, waits for rank 0" in text
    assert sorted(cleaned) == [0, 1]


def test_a_send_and_a_receive_that_differ_are_named_as_such() -> None:
    def body(torch, dist, rank: int) -> None:
        if rank == 0:
            dist.send(torch.ones(4), dst=1)
        else:
            dist.recv(torch.ones(5), src=0)

    with pytest.raises(SpawnException) as caught:
        on_ranks(2, body)
    text = str(caught.value.errors[0])
    assert "rank 0  send of (4,) float32" in text
    assert "rank 1  recv of (5,) float32" in text


def test_a_numpy_array_is_refused_by_name() -> None:
    def body(torch, dist, rank: int) -> None:
        dist.all_reduce(torch.ones(4).numpy())

    with pytest.raises(SpawnException) as caught:
        on_ranks(2, body)
    assert "all_reduce takes tensors, but got ndarray" in str(caught.value.errors[0])


def test_main_alone_waiting_for_a_message_is_a_deadlock() -> None:
    with RuntimeContext(ranks=2) as torch:
        torch.distributed.init_process_group()
        assert torch.distributed.get_world_size() == 1
        x = torch.ones(2)
        torch.distributed.all_reduce(x)
        assert x.tolist() == [1.0, 1.0]
        with pytest.raises(UsageError, match="rank 1 is not in group world"):
            torch.distributed.recv(x, src=1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t, d: d.init_process_group(), UsageError, "called init_process_group before"),
        (lambda t, d: d.all_reduce(t.ones(2), op="xor"), UnknownNameError, "reduce op 'xor'"),
        (lambda t, d: d.all_reduce(t.ones(2, 3).T), UsageError, "take contiguous tensors"),
        (lambda t, d: d.all_reduce(t.ones(2, device="ahbm:1")), UsageError, "lies on SIP 1"),
        (lambda t, d: d.broadcast(t.ones(2), src=7), UsageError, r"rank 7 is not in group world"),
        (lambda t, d: d.send(t.ones(2), dst=0), UsageError, "rank 0 cannot send to itself"),
        (lambda t, d: d.recv(t.ones(2)), UsageError, "pass src="),
        (lambda t, d: d.new_group([0, 5]), UsageError, "rank 5 was asked for, but the world has 1"),
        (lambda t, d: d.new_group([0, 0]), UsageError, "name a rank twice"),
        (lambda t, d: d.new_group([]), UsageError, "at least one rank"),
        (lambda t, d: d.all_reduce(t.ones(2), group="tp"), UsageError, "must be a ProcessGroup"),
        (
            lambda t, d: d.all_gather_into_tensor(t.ones(3), t.ones(2)),
            UsageError,
            r"must hold 1 x 2 elements of torch.float32, but .* holds 3",
        ),
        (
            lambda t, d: d.all_gather([], t.ones(2)),
            UsageError,
            "has 0 tensors, but the group has 1",
        ),
        (lambda t, d: d.reduce_scatter(t.ones(2), [t.ones(3)]), UsageError, "must be like"),
        (lambda t, d: d.all_reduce(t.ones(2), algorithm="fast"), UnknownNameError, "'fast'"),
    ],
)
def test_bad_input_is_refused(call, error: type[Exception], message: str) -> None:
    with RuntimeContext("ahbm:2") as torch:
        torch.distributed.init_process_group()
        with pytest.raises(error, match=message):
            call(torch, torch.distributed)


def test_a_world_of_other_numbers_is_refused() -> None:
    with RuntimeContext() as torch:
        with pytest.raises(UsageError, match="rank=1, but this is rank 0"):
            torch.distributed.init_process_group("nccl", rank=1)
        with pytest.raises(UsageError, match="world_size=4, but spawn started 1"):
            torch.distributed.init_process_group(world_size=4)
        with pytest.raises(UsageError, match=r"init_process_group\(\) first"):
            torch.distributed.get_rank()
        assert not torch.distributed.is_initialized()
        torch.distributed.init_process_group("nccl", rank=0, world_size=1)
        assert torch.distributed.is_initialized()
        torch.distributed.destroy_process_group()
        assert not torch.distributed.is_initialized()


def test_ranks_that_make_different_groups_are_told() -> None:
    def body(torch, dist, rank):
        dist.new_group([0, 1] if rank else [0])

    with pytest.raises(SpawnException, match="rank 1") as caught:
        on_ranks(2, body)
    assert r"asks for ranks [0, 1] where rank 0, at test_distributed.py:" in str(
        caught.value.exceptions[0]
    )
