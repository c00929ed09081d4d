"""What supposes a GPU or real processes: it works in simulated time, or is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import DeadlockError  # noqa: E402
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError  # noqa: E402
from tests.forked import COMPILER, run_forked  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, cases_of, simulated  # noqa: E402

run = partial(simulated, "lacking_parts.py")


MARKED = (
    (
        pytest.mark.adr("0077-D1"),
        (
            "a_part_that_devices_lack_is_refused_by_the_name_that_was_called",
            "asking_whether_a_part_exists_is_answered",
        ),
    ),
    (
        pytest.mark.adr("0077-D3"),
        (
            "ranks_share_queues_and_locks_with_what_spawned_them",
            "ranks_share_what_a_manager_of_their_parent_serves",
        ),
    ),
)
OTHER = (
    "an_operator_without_a_kernel_is_refused",
    "an_operation_of_gpus_only_is_refused",
    "waiting_for_what_nobody_puts_in_a_queue_ends_at_once",
    "a_process_keeps_to_its_fraction_of_a_device",
    "splitting_a_group_gives_each_rank_the_group_of_its_ranks",
    "fsdp1_takes_the_number_of_a_device",
    "gradients_that_show_ddps_buckets_are_on_the_device",
    "each_fast_attention_of_cuda_may_be_asked_for",
)
"""Cases that other tests run."""


@pytest.mark.parametrize("case", cases_of("lacking_parts.py", MARKED, OTHER))
def test_a_part_works_or_is_refused(case: str) -> None:
    run(case)


@pytest.mark.adr("0077-D1")
def test_an_operator_without_a_kernel_is_refused() -> None:
    """PyTorch refuses these, and what comes out of the program says what to do."""
    with pytest.raises(UnsupportedTorchError, match=r"register one in .*: Library\(...\).impl\("):
        run("an_operator_without_a_kernel_is_refused")
    with pytest.raises(UnsupportedTorchError, match=r"aten._fused_dropout: .* for GPUs only"):
        run("an_operation_of_gpus_only_is_refused")


@pytest.mark.adr("0061-D4")
def test_what_only_a_cuda_build_has_is_hidden_while_a_program_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask_the_driver(*args: object) -> None:
        raise RuntimeError("Found no NVIDIA driver on your system")

    names = (
        "_cuda_getCurrentBlasHandle",
        "_cuda_cudaCachingAllocator_raw_alloc",
        "_cuda_getDeviceCount",
    )
    for name in names:
        monkeypatch.setattr(torch._C, name, ask_the_driver, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    run("what_only_a_cuda_build_has_is_hidden_while_a_program_runs", *names)
    assert all(getattr(torch._C, name) is ask_the_driver for name in names)
    assert torch.backends.cudnn.is_available()


def test_what_generated_code_asks_of_a_cuda_build_is_answered() -> None:
    simulated("raw_calls.py", machine="a100-sxm-80g:2", nprocs=2)


@pytest.mark.campaign
@pytest.mark.slow
def test_a_guard_of_a_device_is_the_programs_after_something_was_compiled(tmp_path: Path) -> None:
    command = ["kernbench", "torchrun", "--machine", "a100-sxm-80g", "--nproc-per-node", "2"]
    ended = run_forked(
        *command,
        *(str(PROGRAMS / "raw_calls.py"), "compiled"),
        imports=COMPILER,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr


def test_a_process_keeps_to_its_fraction_of_a_device() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        run(
            "a_process_keeps_to_its_fraction_of_a_device",
            data=False,
        )


def test_splitting_a_group_gives_each_rank_the_group_of_its_ranks() -> None:
    run(
        "splitting_a_group_gives_each_rank_the_group_of_its_ranks",
        nprocs=4,
    )


@pytest.mark.adr("0077-D3")
def test_a_manager_serves_the_threads_of_a_rank_as_a_real_one_does(tmp_path: Path) -> None:
    real = [sys.executable, str(PROGRAMS / "managed.py"), f"{tmp_path}/real"]
    subprocess.run(real, check=True, timeout=100)
    simulated("managed.py", tmp_path / "simulated")
    assert (tmp_path / "simulated").read_text() == (tmp_path / "real").read_text()


@pytest.mark.adr("0077-D3")
def test_waiting_for_what_nobody_puts_in_a_queue_ends_at_once() -> None:
    with pytest.raises(DeadlockError):
        run("waiting_for_what_nobody_puts_in_a_queue_ends_at_once")


def test_fsdp1_takes_the_number_of_a_device() -> None:
    run(
        "fsdp1_takes_the_number_of_a_device",
        nprocs=2,
    )


@pytest.mark.parametrize("data", [True, False])
def test_pinned_memory_says_so_wherever_it_is_asked_for(data: bool) -> None:
    run(
        "pinned_memory_says_so_wherever_it_is_asked_for",
        "data" if data else "no data",
        data=data,
    )


@pytest.mark.parametrize("data", [True, False])
def test_gradients_that_show_ddps_buckets_are_on_the_device(data: bool) -> None:
    run(
        "gradients_that_show_ddps_buckets_are_on_the_device",
        nprocs=2,
        data=data,
    )


@pytest.mark.parametrize("data", [True, False])
def test_functions_may_say_where_storages_are_loaded(data: bool) -> None:
    run(
        "functions_may_say_where_storages_are_loaded",
        "data" if data else "no data",
        data=data,
    )


def test_each_fast_attention_of_cuda_may_be_asked_for() -> None:
    kinds = ("flash", "cudnn", "math")
    flags = [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds]
    context = run("each_fast_attention_of_cuda_may_be_asked_for")
    names = [instance.template.name for instance in context.op_log.instances]
    assert names.count("aten._scaled_dot_product_flash_attention") == 2
    assert names.count("aten._scaled_dot_product_efficient_attention") == 2
    assert flags == [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds]
