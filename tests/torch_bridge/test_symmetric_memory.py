"""PyTorch's symmetric memory: kernels that communicate have right numbers, and take their time."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import DeadlockError, UsageError  # noqa: E402
from kernbench.runtime_api import RuntimeContext, SpawnException  # noqa: E402
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

run = partial(simulated, "symmetric_memory.py", machine="h100-sxm:4", nprocs=4)


@pytest.mark.adr("0230-D1")
@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize(
    "case", ["kernels_reach_what_ranks_exchange", "kernels_wait_for_signals_of_others"]
)
def test_kernels_have_the_numbers_of_all_ranks(case: str, checks: bool) -> None:
    """Expected values are closed forms, and without alarms under the sanitizer."""
    run(case, check=checks)


@pytest.mark.adr("0230-D1")
def test_streams_signal_each_other() -> None:
    run("streams_signal_each_other")


@pytest.mark.adr("0230-D3")
def test_operations_reduce_with_the_algorithms_of_their_names() -> None:
    context = run("operations_reduce_as_their_names_say")
    names = [instance.template.name for instance in context.op_log.instances]
    assert names.count("all_reduce") == 6


def test_mistakes_are_named() -> None:
    run("mistakes_are_named", nprocs=2)


@pytest.mark.adr("0230-D2")
def test_a_signal_that_never_comes_is_a_deadlock_with_its_line() -> None:
    lines = (PROGRAMS / "symmetric_memory.py").read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(lines) if "while tl.atomic_cas" in text)
    said = rf"symmetric_memory\.py:{line} for a change of signals of rank 0"
    with pytest.raises(DeadlockError, match=said):
        run("a_signal_never_comes", nprocs=2)


@pytest.mark.adr("0230-D2")
def test_a_load_from_a_peer_takes_the_time_that_it_takes_in_a_bench() -> None:
    context = run("a_peer_is_loaded", nprocs=2)
    (result,) = [
        instance for instance in context.op_log.instances if instance.template.name == "load_peer"
    ]
    said = [line for remark in context.run.remarks for line in remark()]
    assert any("hosts waited for each kernel that communicates" in line for line in said)

    import triton
    import triton.language as tl

    @triton.jit
    def load_peer(theirs, out, n: tl.constexpr):
        lane = tl.arange(0, n)
        tl.store(out + lane, tl.load(theirs + lane) * 2)

    with RuntimeContext(machine=context.machine, ranks=2) as kernbench:
        memory = kernbench.distributed.symmetric_memory

        def worker(rank: int) -> None:
            kernbench.ahbm.set_device(rank)
            kernbench.distributed.init_process_group()
            x = memory.empty(1024, dtype=kernbench.float32)
            handle = memory.rendezvous(x)
            x.fill_(1)
            handle.barrier()
            # As there, where the host has come later: the launch is not hidden behind anything.
            kernbench.ahbm.synchronize()
            if rank == 0:
                theirs = handle.get_buffer(1, (1024,), kernbench.float32)
                out = kernbench.empty(1024, dtype=kernbench.float32)
                load_peer[(1,)](theirs, out, 1024)

        kernbench.multiprocessing.spawn(worker, nprocs=2)
    wanted = [
        instance for instance in kernbench.op_log.instances if instance.template.name == "load_peer"
    ]
    assert result.template.duration_ps == wanted[0].template.duration_ps


@pytest.mark.adr("0230-D1")
def test_a_run_without_data_refuses_it_by_name() -> None:
    with pytest.raises(SpawnException) as raised:
        run("memory_is_shared", nprocs=2, data=False)
    assert all(
        isinstance(exception, UnsupportedTorchError) for exception in raised.value.exceptions
    )
    assert "leave --no-data out" in str(raised.value.exceptions[0])
    assert not isinstance(raised.value.exceptions[0], UsageError)
