"""Kernels of several ranks that wait for each other: their numbers, their time, their deadlocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernbench.errors import DeadlockError, NoDataError
from kernbench.hardware import Machine, load_machine
from kernbench.runtime_api import RuntimeContext
from tests.runtime_api import symmetric_kernels as kernels
from tests.runtime_api.front.test_symmetric_memory import on_ranks
from tests.tiers import daily

HBM_PS = 500_000
"""More than an access to HBM takes."""


def share(torch: Any, values: Any) -> tuple[Any, Any]:
    """Return a rank's shared tensor with the given values, and the rendezvous."""
    symmetric = torch.distributed.symmetric_memory
    values = np.asarray(values)
    x = symmetric.empty(values.shape, dtype=str(values.dtype), name="x")
    shared = symmetric.rendezvous(x)
    x.copy_(values)
    torch.ahbm.synchronize()
    torch.distributed.barrier()
    return x, shared


def parts_of(torch: Any, shared: Any, like: Any) -> tuple[Any, ...]:
    return tuple(
        shared.get_buffer(rank, like.shape, like.dtype) for rank in range(shared.world_size)
    )


def values_of(rank: int, count: int) -> Any:
    return np.random.default_rng(rank).integers(-50, 50, count).astype(np.float32)


def launches(torch: RuntimeContext, name: str) -> list[Any]:
    return [instance for instance in torch.op_log.instances if instance.template.name == name]


def rows_of(torch: RuntimeContext, name: str) -> list[dict[str, Any]]:
    return [row for row in torch.op_log.to_arrow().to_pylist() if row["name"] == name]


# -- numbers ------------------------------------------------------------------------------------


@pytest.mark.adr("0032-D2")
@pytest.mark.parametrize("ranks", daily(2, 3, of=(2, 3, 5, 8)))
def test_all_ways_to_reduce_give_what_the_library_gives(ranks: int) -> None:
    count, block = 96 * ranks, 64
    expected = sum(values_of(rank, count) for rank in range(ranks))

    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, values_of(rank, count))
        library, one, other = (
            torch.from_numpy(values_of(rank, count)),
            *map(torch.zeros, (count,) * 2),
        )
        torch.distributed.all_reduce(library)
        grid = (-(-count // block),)
        world = 1 << (ranks - 1).bit_length()
        if world == ranks:
            pads = shared.signal_pad_ptrs_dev
            kernels.one_shot[grid](
                parts_of(torch, shared, x), pads, one, count, rank, WORLD=ranks, B=block
            )
            kernels.one_shot_by_address[grid](
                shared.buffer_ptrs_dev, pads, other, count, rank, WORLD=ranks, B=block
            )
            two = (-(-count // ranks // block),)
            kernels.two_shot[two](
                shared.buffer_ptrs_dev, pads, rank, count // ranks, WORLD=ranks, B=block
            )
            results = [one, other, x]
        else:
            kernels.sum_of_arguments[grid](
                parts_of(torch, shared, x), one, count, WORLD=ranks, B=block
            )
            results = [one]
        for item in (library, *results):
            np.testing.assert_array_equal(item.numpy(), expected)
        torch.distributed.barrier()

    on_ranks(ranks, body)


@pytest.mark.adr("0032-D2")
def test_pointers_are_translated_from_heap_to_heap() -> None:
    def body(torch: Any, rank: int) -> None:
        heap, shared = share(torch, np.zeros(64, np.float32))
        flags = shared.get_buffer(rank, (1,), torch.int32, storage_offset=32)
        out = torch.zeros(8)
        data = heap[8:16]
        kernels.put_to_next[(1,)](data, flags, shared.buffer_ptrs_dev, out, rank, WORLD=4, B=8)
        before = (rank - 1) % 4
        assert out.tolist() == [before * 100 + lane for lane in range(8)]

    on_ranks(4, body)


@pytest.mark.adr("0032-D2")
def test_a_lock_on_one_rank_protects_a_count_from_all() -> None:
    ranks, times = 4, 5

    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(2, np.int32))
        there = shared.get_buffer(0, (2,), torch.int32)
        kernels.count_up[(2,)](there, there[1:], times)
        torch.ahbm.synchronize()
        torch.distributed.barrier()
        if rank == 0:
            assert x.tolist() == [0, 2 * ranks * times]

    on_ranks(ranks, body)


@pytest.mark.adr("0032-D2")
def test_kernels_of_two_ranks_take_turns() -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(1, np.int32))
        out = torch.zeros(1, dtype=torch.int32)
        theirs = shared.get_buffer(1 - rank, (1,), torch.int32)
        kernels.turn_about[(1,)](x, theirs, out, 6, rank)
        assert out.tolist() == [6 + rank % 2]

    on_ranks(2, body)


@pytest.mark.adr("0032-D3")
@pytest.mark.parametrize("receive", ["await_flag", "await_by_poll", "await_by_cas"])
@pytest.mark.parametrize(
    "transmit",
    [
        "send",
        pytest.param("send_by_store", marks=pytest.mark.unchecked("a plain store is no signal")),
    ],
)
@pytest.mark.parametrize("sender_is_late", [False, True])
def test_every_sort_of_signal_reaches_every_sort_of_wait(
    receive: str, transmit: str, sender_is_late: bool
) -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(1, np.int32))
        out = torch.zeros(1, dtype=torch.int32)
        if (rank == 0) == sender_is_late:
            torch.randn(256, 256) @ torch.randn(256, 256)
        if rank == 0:
            getattr(kernels, transmit)[(1,)](shared.get_buffer(1, (1,), torch.int32), 3)
        else:
            getattr(kernels, receive)[(1,)](x, 3, out)
            assert out.tolist() == [4]

    on_ranks(2, body)


@pytest.mark.adr("0032-D3")
@pytest.mark.unchecked("what the host writes is no signal")
@pytest.mark.parametrize("by_kernel", [False, True])
def test_the_host_may_send_the_signal(by_kernel: bool) -> None:
    """By a fill, or a kernel that concerns nobody else, on the memory of the rank that waits."""

    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(1, np.int32))
        out = torch.zeros(1, dtype=torch.int32)
        if rank == 0:
            kernels.await_flag[(1,)](shared.get_buffer(1, (1,), torch.int32), 3, out)
            assert out.tolist() == [4]
        elif by_kernel:
            kernels.send_by_store[(1,)](x, 3)
        else:
            x.fill_(3)

    on_ranks(2, body)


def test_loops_read_and_write_the_memory_of_others() -> None:
    values = values_of(0, 3 * 32).reshape(3, 32)

    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, values if rank == 0 else np.zeros((3, 32), np.float32))
        mine = torch.zeros(3, 32)
        if rank == 1:
            theirs = shared.get_buffer(0, (3, 32), torch.float32)
            kernels.copy_rows[(2,)](theirs, mine, 3, B=16)
            np.testing.assert_array_equal(mine.numpy(), values)
            kernels.copy_rows[(2,)](mine + 1, theirs, 3, B=16)
        torch.ahbm.synchronize()
        torch.distributed.barrier()
        if rank == 0:
            np.testing.assert_array_equal(x.numpy(), values + 1)

    on_ranks(2, body)


# -- time ---------------------------------------------------------------------------------------


def copied(size: int, machine: str | Machine = "ahbm", ranks: int = 2, peer: int = 1) -> Any:
    """Return the run and the launch of a copy of float32 from a peer's memory."""

    def body(torch: Any, rank: int) -> None:
        _, shared = share(torch, np.zeros(size, np.float32))
        if rank == 0:
            theirs = shared.get_buffer(peer, (1, size), torch.float32)
            out = torch.zeros(1, size)
            block = min(size, 1024)
            torch.launch("fetch", kernels.copy_rows, theirs, out, 1, grid=size // block, B=block)
        torch.ahbm.synchronize()
        torch.distributed.barrier()

    torch = on_ranks(ranks, body, machine=machine)
    (launch,) = launches(torch, "fetch")
    return torch, launch


@pytest.mark.adr("0032-D4")
@pytest.mark.parametrize("size", [1024, 1 << 15, 1 << 18])
def test_a_far_read_is_never_faster_than_its_link(size: int) -> None:
    machine = load_machine("ahbm", 2)
    (link,) = (machine.links[index] for index in machine.route(1, 0))
    least_ps = 2 * link.latency_ps + link.transfer_ps(4 * size)
    _, launch = copied(size)
    assert least_ps < launch.template.duration_ps
    if size == 1 << 18:
        assert launch.template.duration_ps < 1.3 * least_ps


@pytest.mark.adr("0032-D4")
def test_a_longer_way_takes_longer_by_its_latencies() -> None:
    machine = load_machine("ahbm", 8)
    times = [copied(64, ranks=8, peer=peer)[1].template.duration_ps for peer in (1, 2, 3)]
    hop_ps = 2 * machine.links[0].latency_ps
    assert times[1] - times[0] == times[2] - times[1] == hop_ps


@pytest.mark.adr("0032-D4")
def test_the_log_names_engine_peer_and_link() -> None:
    torch, _ = copied(4096)
    rows = rows_of(torch, "fetch")
    (read,) = [row for row in rows if row["engine"] == "dma_in"]
    (link,) = [row for row in rows if row["link"] >= 0]
    assert (read["kind"], read["src_space"], read["peer"], read["bytes"]) == (
        "dma_read",
        "link",
        1,
        16384,
    )
    assert link["engine"] == "link"
    assert torch.machine.links[link["link"]].name == "sip1->sip0"
    assert (link["peer"], link["bytes"], link["file"]) == (1, 16384, read["file"])
    assert link["busy_ps"] == torch.machine.links[link["link"]].transfer_ps(16384)
    assert read["start_ps"] < link["start_ps"] < link["end_ps"] < read["end_ps"]
    assert read["src_address"] != read["dst_address"]


@pytest.mark.adr("0032-D4")
def test_a_far_read_shares_its_link_with_a_collective() -> None:
    """Whoever comes second waits: together they take the link for as long as both of them need."""
    size = 1 << 19

    def body(torch: Any, rank: int) -> None:
        _, shared = share(torch, np.zeros(size, np.float32))
        out, message = torch.zeros(1, size), torch.zeros(size)
        torch.ahbm.synchronize()
        torch.distributed.barrier()
        work = torch.distributed.broadcast(message, 1, async_op=True)
        if rank == 0:
            theirs = shared.get_buffer(1, (1, size), torch.float32)
            torch.launch("fetch", kernels.copy_rows, theirs, out, 1, grid=size // 1024, B=1024)
        work.wait()
        torch.ahbm.synchronize()
        torch.distributed.barrier()

    torch = on_ranks(2, body)
    (launch,) = launches(torch, "fetch")
    alone_ps = copied(size)[1].template.duration_ps
    busy_ps = torch.machine.links[torch.machine.route(1, 0)[0]].transfer_ps(4 * size)
    assert alone_ps + 0.8 * busy_ps < launch.template.duration_ps < alone_ps + 1.1 * busy_ps


@pytest.mark.adr("0032-D3")
@pytest.mark.parametrize("receive", ["await_flag", "await_by_poll", "await_by_cas"])
def test_who_waits_goes_on_when_the_signal_arrives(receive: str) -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(1, np.int32))
        if rank == 0:
            # The peer waits for this kernel; the product before it keeps the SIP busy.
            torch.randn(1024, 1024) @ torch.randn(1024, 1024)
            theirs = shared.get_buffer(1, (1,), torch.int32)
            torch.launch("send", kernels.send, theirs, 3, grid=1)
        else:
            out = torch.zeros(1, dtype=torch.int32)
            torch.launch("receive", getattr(kernels, receive), x, 3, out, grid=1)
        torch.ahbm.synchronize()

    torch = on_ranks(2, body)
    (sent,), (received,) = launches(torch, "send"), launches(torch, "receive")
    assert received.starts_ps[0] + 10_000_000 < sent.starts_ps[0]
    (hop,) = [row for row in rows_of(torch, "send") if row["link"] >= 0]
    arrival_ps = hop["end_ps"] + torch.machine.links[hop["link"]].latency_ps
    # One more look at the flag, and the store of the result.
    assert arrival_ps < received.ends_ps[0] < arrival_ps + 2 * HBM_PS
    (wait,) = [row for row in rows_of(torch, "receive") if row["kind"] == "wait"]
    assert wait["end_ps"] == arrival_ps


@pytest.mark.adr("0032-D3")
def test_waiting_costs_the_host_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many times longer takes as many steps of the simulation."""
    polls: dict[int, int] = {}
    for size in (64, 2048):

        def body(torch: Any, rank: int, size: int = size) -> None:
            x, shared = share(torch, np.zeros(1, np.int32))
            if rank == 0:
                torch.randn(size, size) @ torch.randn(size, size)
                kernels.send[(1,)](shared.get_buffer(1, (1,), torch.int32), 3)
            else:
                out = torch.zeros(1, dtype=torch.int32)
                torch.launch("receive", kernels.await_flag, x, 3, out, grid=1)
            torch.ahbm.synchronize()

        torch = on_ranks(2, body)
        (launch,) = launches(torch, "receive")
        polls[launch.template.duration_ps] = sum(
            row["count"] for row in rows_of(torch, "receive") if row["kind"] == "dma_read"
        )
    short, long = sorted(polls)
    assert long > 20 * short
    assert set(polls.values()) == {2}


@pytest.mark.adr("0032-D5")
def test_the_report_counts_waiting_as_communication() -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(1, np.int32))
        if rank == 0:
            torch.randn(2048, 2048) @ torch.randn(2048, 2048)
            kernels.send[(1,)](shared.get_buffer(1, (1,), torch.int32), 3)
        else:
            out = torch.zeros(1, dtype=torch.int32)
            torch.launch("receive", kernels.await_flag, x, 3, out, grid=1)
        torch.ahbm.synchronize()

    torch = on_ranks(2, body)
    (launch,) = launches(torch, "receive")
    (wait,) = [row for row in rows_of(torch, "receive") if row["kind"] == "wait"]
    assert launch.template.comm_ps >= wait["end_ps"] - wait["start_ps"]
    assert launch.template.comm_ps < launch.template.duration_ps
    entry = torch.report()["per_rank"][1]
    assert entry["comm_exposed_ns"] >= launch.template.comm_ps / 1000


@pytest.mark.adr("0032-D6")
def test_two_runs_write_the_same_log(tmp_path: Any) -> None:
    logs = []
    for name in ("a", "b"):

        def body(torch: Any, rank: int) -> None:
            _, shared = share(torch, np.zeros(2, np.int32))
            there = shared.get_buffer(0, (2,), torch.int32)
            kernels.count_up[(3,)](there, there[1:], 2)
            torch.ahbm.synchronize()

        torch = on_ranks(4, body)
        torch.op_log.write_parquet(tmp_path / name, machine="ahbm", ranks=4)
        logs.append((tmp_path / name).read_bytes())
    assert logs[0] == logs[1]


# -- what cannot work -----------------------------------------------------------------------------


def deadlock_of(ranks: int, body: Callable[[Any, int], None]) -> str:
    with pytest.raises(DeadlockError) as caught:
        on_ranks(ranks, body)
    return str(caught.value)


@pytest.mark.adr("0032-D6")
@pytest.mark.parametrize("waits", [False, True])
def test_a_rank_that_never_comes_is_a_deadlock_with_kernel_and_line(waits: bool) -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(4, np.float32))
        if rank == 1:
            return
        out = torch.zeros(4)
        kernels.one_shot[(1,)](
            parts_of(torch, shared, x), shared.signal_pad_ptrs_dev, out, 4, rank, WORLD=4, B=4
        )
        if waits:
            torch.ahbm.synchronize()

    text = deadlock_of(4, body)
    for rank in (0, 2, 3):
        assert (
            f"kernel one_shot on SIP {rank} (rank {rank}), which waits: program (0, 0, 0) at"
            in text
        )
    assert "symmetric_kernels.py:" in text
    assert "for a change of signals of x" in text
    assert ("rank 1  finished at" in text) == waits


@pytest.mark.adr("0032-D6")
def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    def body(torch: Any, rank: int) -> None:
        x, shared = share(torch, np.zeros(1, np.int32))
        out = torch.zeros(1, dtype=torch.int32)
        kernels.await_flag[(1,)](x, 1, out)
        kernels.send[(1,)](shared.get_buffer(1 - rank, (1,), torch.int32), 1)
        torch.ahbm.synchronize()

    text = deadlock_of(2, body)
    assert "nothing can wake ranks 0 and 1" in text
    assert text.count("kernel await_flag on SIP") == 2


@pytest.mark.adr("0032-D6")
def test_a_rank_that_fails_ends_who_waits_in_a_kernel() -> None:
    with RuntimeContext(ranks=2) as torch:

        def main(rank: int) -> None:
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group()
            x, _ = share(torch, np.zeros(1, np.int32))
            if rank == 1:
                raise ValueError("no signal today")
            kernels.await_flag[(1,)](x, 1, torch.zeros(1, dtype=torch.int32))
            torch.ahbm.synchronize()

        with pytest.raises(ExceptionGroup) as caught:
            torch.multiprocessing.spawn(main, nprocs=2)
        assert [type(exception) for exception in caught.value.exceptions] == [ValueError]


@pytest.mark.adr("0032-D7")
def test_without_data_a_known_kernel_takes_the_time_that_it_takes_with() -> None:
    times = {}
    for data in (False, True):

        def body(torch: Any, rank: int) -> None:
            symmetric = torch.distributed.symmetric_memory
            x = symmetric.empty(1 << 14, dtype=torch.float32)
            x.zero_()
            shared = symmetric.rendezvous(x)
            out = torch.zeros(1 << 14)
            shared.barrier()
            kernels.sum_of_arguments[(16,)](
                parts_of(torch, shared, x), out, 1 << 14, WORLD=4, B=1024
            )
            shared.barrier()
            torch.ahbm.synchronize()

        torch = on_ranks(4, body, data=data)
        times[data] = [launch.ends_ps for launch in launches(torch, "sum_of_arguments")]
    assert times[False] == times[True]


@pytest.mark.adr("0032-D7")
def test_without_data_a_kernel_that_waits_is_refused_by_name() -> None:
    def body(torch: Any, rank: int) -> None:
        symmetric = torch.distributed.symmetric_memory
        x = symmetric.empty(1, dtype=torch.int32)
        symmetric.rendezvous(x)
        with pytest.raises(
            NoDataError,
            match=r"in kernel await_flag at symmetric_kernels.py:\d+ needs data.*run it",
        ):
            kernels.await_flag[(1,)](x, 1, x)

    on_ranks(2, body, data=False)
