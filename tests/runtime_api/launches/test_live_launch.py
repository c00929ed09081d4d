"""The data-dependence barrier: kernels that decide by data, in virtual time."""

from __future__ import annotations

import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from kernbench.errors import DeadlockError, NoDataError, UsageError
from kernbench.kernel_time import schedule_kernel
from kernbench.runtime_api import RuntimeContext
from kernbench.runtime_api.launches import kernel_engine
from tests.interleaved import live_kernels as kernels
from tests.runtime_api.runtime_kernels import add_one


@pytest.fixture
def torch():
    with RuntimeContext(ranks=2) as context:
        yield context


def collatz_ps(values: list[int]) -> int:
    with RuntimeContext() as torch:
        x = torch.tensor(values, dtype=torch.int32)
        steps = torch.zeros(len(values), dtype=torch.int32)
        handle: Any = torch.launch("collatz", kernels.collatz, x, steps, grid=len(values))
        torch.wait(handle)
        return handle.end_ps - handle.start_ps


@pytest.mark.adr("0031-D1")
def test_the_kernel_sees_what_was_launched_before_it(torch) -> None:
    x = torch.zeros(64, dtype=torch.int32)
    steps = torch.zeros(64, dtype=torch.int32)
    for _ in range(6):
        add_one[(1,)](x, x, 64, BLOCK=64)
    # Nothing has been replayed yet.
    assert len(torch.run.replay_queue)
    kernels.collatz[(64,)](x, steps)
    assert steps.tolist() == [8] * 64


@pytest.mark.adr("0031-D1")
def test_what_is_launched_after_it_sees_what_it_did(torch) -> None:
    x = torch.tensor([1, 3, 6], dtype=torch.int32)
    steps = torch.zeros(3, dtype=torch.int32)
    kernels.collatz[(3,)](x, steps)
    add_one[(1,)](steps, steps, 3, BLOCK=4)
    assert steps.tolist() == [1, 8, 9]


@pytest.mark.adr("0031-D6")
def test_time_grows_with_trip_counts() -> None:
    # 2, 4, 8 and 16 take 1 to 4 steps.
    times = [collatz_ps([2**steps]) for steps in range(1, 5)]
    assert len({b - a for a, b in pairwise(times)}) == 1
    assert times[0] < times[1]
    assert collatz_ps([1, 1, 2, 16]) == collatz_ps([16, 16, 16, 16])


@pytest.mark.adr("0031-D6")
def test_what_follows_a_decision_starts_after_it(torch) -> None:
    flags = torch.ones(1, dtype=torch.int32)
    x, out = torch.ones(8), torch.zeros(8)
    kernels.skip[(1,)](flags, x, out, B=8)
    torch.synchronize(0)
    rows = [row for row in torch.op_log.to_arrow().to_pylist() if row["name"] == "skip"]
    flag, load, *_ = sorted(rows, key=lambda row: row["start_ps"])
    assert (flag["src_address"], load["src_address"]) == (flags.data_ptr(), x.data_ptr())
    assert load["start_ps"] >= flag["end_ps"]


@pytest.mark.adr("0031-D6")
def test_the_log_counts_what_ran(torch) -> None:
    x, out = torch.ones(10, 16), torch.zeros(10, 16)
    counter = torch.zeros(1, dtype=torch.int32)
    kernels.persistent_scale[(4,)](x, out, counter, 10, B=16)
    torch.synchronize(0)
    rows = [row for row in torch.op_log.to_arrow().to_pylist() if row["name"] == "persistent_scale"]
    count = {
        kind: sum(r["count"] for r in rows if r["kind"] == kind) for kind in ("atomic", "dma_write")
    }
    assert count == {"atomic": 10 + 4, "dma_write": 10}
    assert sum(r["bytes"] for r in rows if r["kind"] == "dma_write") == out.nbytes


def test_a_spinning_program_costs_its_polls() -> None:
    times = []
    for programs in (2, 8):
        with RuntimeContext() as torch:
            x, out = torch.ones(programs, 16), torch.zeros(16)
            locks = torch.zeros(2, dtype=torch.int32)
            handle: Any = torch.launch(
                "sum", kernels.locked_sum, x, out, locks, grid=programs, B=16, GROUP=1
            )
            torch.wait(handle)
            times.append(handle.end_ps - handle.start_ps)
    assert times[0] < times[1]


@pytest.mark.adr("0031-D5")
def test_two_runs_write_the_same_log(tmp_path) -> None:
    logs = []
    for name in ("a", "b"):
        with RuntimeContext() as torch:
            x, out = torch.ones(37, 16), torch.zeros(5, 16)
            locks = torch.zeros(10, dtype=torch.int32)
            kernels.locked_sum[(37,)](x, out, locks, B=16, GROUP=5)
            torch.drain()
            torch.op_log.write_parquet(tmp_path / name, machine="ahbm", ranks=1)
        logs.append((tmp_path / name).read_bytes())
    assert logs[0] == logs[1]


@pytest.mark.adr("0277-D1")
def test_launches_that_did_alike_are_scheduled_once(tmp_path, monkeypatch) -> None:
    scheduled: list[str] = []

    def counting(trace: Any, *arguments: Any) -> Any:
        scheduled.append(trace.name)
        return schedule_kernel(trace, *arguments)

    def run(name: str) -> tuple[bytes, int]:
        scheduled.clear()
        with RuntimeContext(machine="h100-sxm") as torch:
            items = torch.zeros(4, 256, dtype=torch.int32)
            lengths = torch.tensor([3, 50, 20, 100], dtype=torch.int32)
            counts = torch.ones(4, dtype=torch.int32)
            for _ in range(40):
                kernels.append[(4,)](items, lengths, counts, S=256)
            assert lengths.tolist() == [43, 90, 60, 140]
            assert items[1, 50:90].tolist() == list(range(50, 90))
            torch.op_log.write_parquet(tmp_path / name, machine="h100-sxm", ranks=1)
        return (tmp_path / name).read_bytes(), len(scheduled)

    monkeypatch.setattr(kernel_engine, "schedule_kernel", counting)
    log, few = run("alike")
    monkeypatch.setattr(kernel_engine, "schedule_key", lambda *_: object())
    each_anew, many = run("anew")
    assert log == each_anew
    assert many >= 40
    assert few <= many // 2


def grouped(torch: Any) -> tuple[list[Any], list[Any]]:
    sizes = [(32, 48, 64), (16, 16, 32)]
    rng = np.random.default_rng(4)
    tensors, expected = [], []
    for m, n, k in sizes:
        a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (k, n)))
        expected.append((a.astype(np.float32) @ b.astype(np.float32)).tolist())
        c = torch.zeros(m, n, dtype=torch.float16)
        tensors.append((torch.from_numpy(a), torch.from_numpy(b), c))
    columns = [
        torch.tensor([t.data_ptr() for t in column], dtype=torch.int64)
        for column in zip(*tensors, strict=True)
    ]
    where = torch.tensor(sizes, dtype=torch.int32)
    kernels.grouped_matmul[(4,)](*columns, where, 2, 0, BM=16, BN=16, BK=16)
    return tensors, expected


@pytest.mark.adr("0031-D4")
def test_the_host_waits_for_tensors_that_were_written_through_loaded_pointers(torch) -> None:
    tensors, expected = grouped(torch)
    assert [c.tolist() for _, _, c in tensors] == expected


@pytest.mark.adr("0031-D4")
def test_the_log_knows_tensors_that_were_found_in_memory(torch) -> None:
    tensors, _ = grouped(torch)
    torch.synchronize(0)
    rows = torch.op_log.to_arrow().to_pylist()
    written = {row["dst_address"] for row in rows if row["name"] == "grouped_matmul"} - {0}
    assert written == {c.data_ptr() for _, _, c in tensors}


@pytest.mark.adr("0031-D7")
def test_without_data_the_launch_names_what_needs_it() -> None:
    with RuntimeContext(data=False) as torch:
        x, steps = torch.empty(4, dtype=torch.int32), torch.empty(4, dtype=torch.int32)
        with pytest.raises(
            NoDataError, match=r"scf.condition in kernel collatz at live_kernels.py:\d+ needs data"
        ):
            kernels.collatz[(4,)](x, steps)


@pytest.mark.adr("0031-D3")
def test_a_deadlock_reaches_whoever_waits() -> None:
    with RuntimeContext() as torch:
        flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
        kernels.spin[(3,)](flag, out)
        with pytest.raises(DeadlockError, match=r"kernel spin cannot end: 2 of 3 programs"):
            out.tolist()


@pytest.mark.adr("0031-D7")
def test_a_benchmark_leaves_the_tensors_as_they_were(torch) -> None:
    x, out = torch.ones(10, 16), torch.zeros(10, 16)
    counter = torch.zeros(1, dtype=torch.int32)

    def launch() -> None:
        kernels.persistent_scale[(4,)](x, out, counter, 10, B=16)

    measured_ms = torch.launcher.benchmark_ms(launch)
    assert (counter.tolist(), out.tolist()) == ([0], [[0.0] * 16] * 10)
    torch.run.devices.sip(0).cache.touch(0, 1 << 32)  # as a benchmark finds it
    launch()
    torch.synchronize(0)
    (entry,) = [e for e in torch.op_log.instances if e.template.name == "persistent_scale"]
    assert measured_ms == entry.template.duration_ps / 1e9


def test_what_other_ranks_launch_during_a_benchmark_happens() -> None:
    """A kernel that decides by data waits for its data; other ranks run meanwhile."""
    measured_ms, filled = [], []

    def main(rank: int, torch: RuntimeContext) -> None:
        x, out = torch.ones(10, 16), torch.zeros(10, 16)
        counter = torch.zeros(1, dtype=torch.int32)
        if rank == 0:
            torch.zeros(1 << 24)  # under way when the benchmark begins, and when others launch
            probe = torch.launcher.benchmark_ms
            measured_ms.append(
                probe(lambda: kernels.persistent_scale[(4,)](x, out, counter, 10, B=16))
            )
        else:
            for _ in range(20):
                x.fill_(3)
                add_one[(1,)](x, out, 160, BLOCK=256)
                torch.ahbm.synchronize()
            filled.append(out.tolist())

    with RuntimeContext(ranks=2) as torch:
        torch.multiprocessing.spawn(main, args=(torch,), nprocs=2)
        alone = torch.ones(10, 16), torch.zeros(10, 16), torch.zeros(1, dtype=torch.int32)
        alone_ms = torch.launcher.benchmark_ms(
            lambda: kernels.persistent_scale[(4,)](*alone, 10, B=16)
        )
    assert filled == [[[4.0] * 16] * 10]
    assert measured_ms == [alone_ms]


def test_a_launch_in_a_benchmark_can_be_waited_for(torch) -> None:
    x, out = torch.ones(4), torch.zeros(4)
    milliseconds = torch.launcher.benchmark_ms(
        lambda: torch.wait(torch.launch("add_one", add_one, x, out, 4, BLOCK=4))
    )
    assert milliseconds > 0
    assert out.tolist() == [0.0] * 4


def test_a_tensor_that_a_collective_uses_is_refused() -> None:
    with RuntimeContext(ranks=2) as torch:

        def main(rank: int) -> None:
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group("ahbm", rank=rank, world_size=2)
            x, steps = torch.ones(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
            work: Any = torch.distributed.all_reduce(steps, async_op=True)
            with pytest.raises(UsageError, match=r"steps .* in use by .*wait"):
                kernels.collatz[(8,)](x, steps)
            work.wait()
            kernels.collatz[(8,)](x, steps)
            assert steps.tolist() == [0] * 8

        torch.multiprocessing.spawn(main, nprocs=2)


def test_under_the_sanitizer_what_it_wrote_is_written() -> None:
    with RuntimeContext(check=True) as torch:
        x = torch.tensor([1, 2, 4], dtype=torch.int32)
        steps, more = torch.empty(3, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
        kernels.collatz[(3,)](x, steps)
        add_one[(1,)](steps, more, 3, BLOCK=4)
        assert more.tolist() == [1, 2, 3]


def test_a_kernel_keeps_no_tensor_of_its_first_launch_alive(torch) -> None:
    def first() -> weakref.ref[Any]:
        x = torch.tensor([6, 7], dtype=torch.int32)
        kernels.collatz[(2,)](x, torch.zeros(2, dtype=torch.int32))
        torch.ahbm.synchronize()
        return weakref.ref(x)

    tensor = first()
    kernels.collatz[(2,)](torch.ones(2, dtype="i32"), torch.zeros(2, dtype="i32"))
    torch.ahbm.synchronize()
    assert tensor() is None


@triton.jit
def choose_kernel(flags, a, b, chosen, read, AS_POINTERS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    flag = tl.load(flags + at)
    if AS_POINTERS:
        # Numbers that are taken for pointers, chosen between, and stored again.
        address = tl.load(a + at).to(tl.pi32_t)
        tl.store(chosen + at, tl.where(flag, address, tl.load(b + at).to(tl.pi32_t)))
    else:
        tl.store(read + at, tl.load(tl.where(flag, a + at, b + at)))


def test_pointers_are_chosen_by_data(torch) -> None:
    flags = torch.from_numpy(np.arange(64) % 3 == 0)
    a, b = (torch.from_numpy(np.arange(64, dtype=np.int64) * n) for n in (1, -1000))
    for as_pointers in (True, False):
        out = torch.zeros(64, dtype=torch.int64)
        choose_kernel[(1,)](flags, a, b, out, out, AS_POINTERS=as_pointers, BLOCK=64)
        expected = np.where(np.arange(64) % 3 == 0, np.arange(64), np.arange(64) * -1000)
        np.testing.assert_array_equal(out.numpy(), expected)
