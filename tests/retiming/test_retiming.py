"""A run that is done again without its program is the run that the program makes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kernbench import DPPolicy, RuntimeContext, ops
from kernbench.cli.app import app
from kernbench.errors import KernbenchError, MachineError, UsageError
from kernbench.hardware import Machine, divided_machine, load_machine, set_keys
from kernbench.memory import FIELDS
from kernbench.op_log import OpLog
from kernbench.retiming import Retiming
from kernbench.runtime_api import SpawnException
from kernbench.saved import load_run, save_run
from tests.interleaved import live_kernels as kernels
from tests.retiming.retiming import Program, assert_same, retime, run_and_keep, save
from tests.runtime_api.runtime_kernels import add_one
from tests.tiers import daily, examples


def mixed(rank: int, torch: Any) -> None:
    """Streams, events, collectives of several kinds, copies, reads, and ranks that differ."""
    dist = torch.distributed
    dist.init_process_group()
    side = torch.ahbm.Stream()
    x = torch.randn(256, 256, dp=DPPolicy(cube="row_wise"))
    for _ in range(1 + rank):
        x = x @ x
    with torch.ahbm.stream(side):
        side.wait_stream(torch.ahbm.default_stream())
        y = ops.gelu(x)
        late = torch.ahbm.Event()
        late.record()
    torch.ahbm.default_stream().wait_event(late)
    work = dist.all_reduce(y, async_op=True)
    x.copy_(x + 1)
    work.wait()
    dist.broadcast(x, src=1)
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
    dist.barrier()
    torch.ahbm.synchronize()
    y.numpy()


def of_streams(rank: int, torch: Any) -> None:
    """Collectives that only streams wait for."""
    torch.distributed.init_process_group(blocking_wait=False)
    x = torch.randn(64, 256)
    for _ in range(3):
        x = ops.softmax(x)
        torch.distributed.all_reduce(x)


def spawning(worker: Any) -> Program:
    return lambda torch: torch.multiprocessing.spawn(worker, (torch,), nprocs=2)


def on_main(torch: Any) -> None:
    x = torch.tensor(np.arange(3, dtype=np.float32))
    y = torch.empty(3)
    torch.launch("mine", add_one, x, y, 3, BLOCK=4)
    torch.report()
    handle = torch.launch("again", add_one, y, x, 3, BLOCK=4)
    while not torch.ahbm.default_stream().query():
        pass
    torch.wait(handle)
    assert x.tolist() == [2, 3, 4]
    start, end = (torch.ahbm.Event() for _ in "ab")
    start.record()
    torch.launch("timed", add_one, y, x, 3, BLOCK=4)
    end.record()
    torch.ahbm.synchronize()
    assert start.elapsed_time(end) == start.elapsed_time(end) > 0


def by_data(torch: Any) -> None:
    x = torch.tensor([1, 3, 6, 27], dtype=torch.int32)
    steps = torch.zeros(4, dtype=torch.int32)
    kernels.collatz[(4,)](x, steps)
    add_one[(1,)](steps, steps, 4, BLOCK=4)
    torch.ahbm.synchronize()


@triton.jit
def scaled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def tuned(torch: Any) -> None:
    kernel = triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 1024)], key=["n"])(
        scaled
    )
    x = torch.ones(4096)
    kernel[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](x, torch.empty(4096), 4096)


PROGRAMS = {
    "mixed": spawning(mixed),
    "of_streams": spawning(of_streams),
    "on_main": on_main,
    "by_data": by_data,
    "tuned": tuned,
}


@pytest.mark.adr("0155-D1")
@pytest.mark.parametrize("machine", daily("h100-sxm", of=("ahbm:2", "h100-sxm")))
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_its_machine_it_is_the_same_run(name: str, machine: str, tmp_path: Path) -> None:
    log, saved = run_and_keep(PROGRAMS[name], machine, tmp_path / "run", ranks=2)
    again = retime(saved)
    assert_same(again.op_log, log)
    # What results is a run as any: it can be kept, and done again.
    save(again, tmp_path / "again")
    assert_same(retime(load_run(tmp_path / "again")).op_log, log)


CHANGES = {
    "sip.cube.hbm_bandwidth_gbps": ("0.25x", "2x"),
    "sip.host_launch_us": ("0", "0.1x", "7"),
    "sip.clock_ghz": ("0.3x", "3x"),
    "sip.cube.hbm_latency_ns": ("0", "10x"),
    "sip.front_end_us": ("0", "4x"),
    "links.bandwidth_gbps": ("0.2x", "8x"),
    "links.latency_ns": ("0", "9x"),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_and_keep(spawning(mixed), "ahbm:2", tmp_path_factory.mktemp("runs") / "run")[1]


def changed(name: str, *settings: str) -> Machine:
    return set_keys(load_machine(name, 2), settings)[0]


@pytest.mark.adr("0155-D1")
@examples(5)
@given(data=st.data())
def test_with_keys_changed_it_is_the_run_of_the_program_with_them(kept: Any, data: Any) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, unique=True))
    values = [f"{key}={data.draw(st.sampled_from(CHANGES[key]))}" for key in keys]
    machine = changed("ahbm:2", *values)
    assert_same(retime(kept, machine).op_log, log_on(machine))


def log_on(machine: Machine) -> OpLog:
    """Run the program itself."""
    with RuntimeContext(machine, check=False) as torch:
        spawning(mixed)(torch)
    return torch.op_log


@pytest.mark.adr("0155-D1")
@pytest.mark.parametrize("name", ["a100-sxm-80g", "h200", "mi300x"])
def test_on_another_machine_kernels_and_collectives_are_its_own(kept: Any, name: str) -> None:
    machine = load_machine(name, 2)
    assert_same(retime(kept, machine).op_log, log_on(machine))


@pytest.mark.adr("0155-D2")
def test_what_may_be_otherwise_is_said(tmp_path: Path) -> None:
    for name, words in (
        ("on_main", "1 query whether something has ended"),
        ("on_main", "2 readings of times between events"),
        ("tuned", "2 measurements of kernels (autotuning)"),
        ("by_data", "take as long as they did: collatz"),
    ):
        _, saved = run_and_keep(PROGRAMS[name], "ahbm", tmp_path / name)
        said = [line for ask in retime(saved).run.remarks for line in ask()]
        assert any(words in line for line in said)
    _, saved = run_and_keep(lambda torch: ops.gelu(torch.ones(8)), "ahbm", tmp_path / "plain")
    assert not [line for ask in retime(saved).run.remarks for line in ask()]


@pytest.mark.adr("0155-D2")
def test_what_cannot_be_done_again_is_refused(kept: Any, tmp_path: Path) -> None:
    with RuntimeContext() as torch:
        ops.gelu(torch.ones(8))
    with (tmp_path / "without").open("wb") as out:
        save_run(out, torch.op_log, torch.machine, torch.report())
    with pytest.raises(UsageError, match="saved without what its ranks did"):
        retime(load_run(tmp_path / "without"))

    def disagree(torch: Any) -> None:
        def worker(rank: int) -> None:
            torch.distributed.init_process_group()
            with suppress(KernbenchError):
                torch.distributed.all_reduce(torch.ones(8 + rank))

        torch.multiprocessing.spawn(worker, nprocs=2)

    _, saved = run_and_keep(disagree, "ahbm:2", tmp_path / "failed")
    with pytest.raises(UsageError, match=r"cannot be retimed: all_reduce #1 .* failed"):
        retime(saved)
    with pytest.raises(UsageError, match=r"2 ranks were asked for, but machine ahbm has 1 SIPs"):
        retime(kept, load_machine("ahbm:1"))
    with pytest.raises(SpawnException) as failed:
        retime(kept, changed("ahbm:2", "sip.pe.tcm_kib=1"))
    assert "TCM is exhausted: kernel" in str(failed.value.exceptions[0])
    with pytest.raises(UsageError, match=r"held [\d,]+ bytes of SIP 0 at a time, but a SIP of"):
        retime(kept, changed("ahbm:2", "sip.cube.hbm_gib=0.0001"))
    with pytest.raises(MachineError, match="no key"):
        changed("ahbm:2", "sip.nothing=2x")


def rows_of_memory(log: OpLog) -> list[tuple[Any, ...]]:
    assert log.allocations is not None
    return [(str(entry.module), entry.phase, *(getattr(entry, name) for name in FIELDS[:9]),
             entry.end, entry.end_ps, entry.file, entry.line)
            for entry in log.allocations.entries]  # fmt: skip


@pytest.mark.adr("0155-D1")
def test_the_record_of_memory_has_the_times_of_the_other_machine(tmp_path: Path) -> None:
    def run(machine: Machine, *, keeps: bool) -> RuntimeContext:
        with RuntimeContext(machine, 2, data=False, record_memory=True) as torch:
            if keeps:
                torch.keep_actions()
            torch.multiprocessing.spawn(mixed_without_data, (torch,), nprocs=2)
        return torch

    first = load_machine("ahbm", 2)
    kept = run(first, keeps=True)
    save(kept, tmp_path / "run")
    saved = load_run(tmp_path / "run")
    slower = set_keys(first, ["sip.host_launch_us=3x", "links.bandwidth_gbps=0.1x"])[0]
    for machine, expected in ((first, kept), (slower, run(slower, keeps=False))):
        retiming = Retiming(saved, machine, keeps_memory=True)
        with retiming.context:
            retiming.work()
        log = retiming.context.op_log
        assert_same(log, expected.op_log)
        assert rows_of_memory(log) == rows_of_memory(expected.op_log)
        save(retiming.context, tmp_path / "again")
        assert rows_of_memory(load_run(tmp_path / "again").log) == rows_of_memory(log)
    assert Retiming(saved, first).context.op_log.allocations is None


def mixed_without_data(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    x = torch.zeros(256, 256)
    for times in range(3):
        for _ in range(times * rank):
            x = ops.gelu(x @ x)
        torch.distributed.all_reduce(x)
    torch.ahbm.synchronize()
    del x
    torch.zeros(64)


def exchanging(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    for _ in range(2):
        torch.distributed.all_reduce(torch.zeros(1 << 16))


def test_ranks_are_divided_among_other_nodes(tmp_path: Path) -> None:
    def program(torch: Any) -> None:
        torch.multiprocessing.spawn(exchanging, (torch,), nprocs=8)

    log, saved = run_and_keep(program, "h100-sxm:8", tmp_path / "run", ranks=8)
    divided = divided_machine(saved.machine, 4, "--ranks-per-node 4")
    with RuntimeContext("h100-sxm:2x4", 8) as torch:
        program(torch)
    assert torch.op_log.end_ps > log.end_ps
    assert_same(retime(saved, divided).op_log, torch.op_log)
    # The other way round, what was between nodes comes to be inside.
    save(retime(saved, divided), tmp_path / "divided")
    assert_same(retime(load_run(tmp_path / "divided"), load_machine("h100-sxm:8")).op_log, log)
    for wrong, said in ((0, "at least 1"), (3, "do not fill nodes of 3"), (16, "have 8")):
        with pytest.raises(MachineError, match=f"--ranks-per-node {wrong}.*{said}"):
            divided_machine(saved.machine, wrong, f"--ranks-per-node {wrong}")
    with pytest.raises(MachineError, match="asks for nodes, but ahbm has none"):
        divided_machine(load_machine("ahbm", 4), 2, "--ranks-per-node 2")
    kept, out = str(tmp_path / "run"), str(tmp_path / "out.json")
    done = CliRunner().invoke(app, ["retime", kept, "--ranks-per-node", "4", "--json", out])
    assert done.exit_code == 0, done.output
    assert "divided into nodes of 4 ranks" in done.output
    assert json.loads(Path(out).read_text())["time_ns"] == torch.op_log.end_ps / 1000
