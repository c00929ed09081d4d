"""What torch.distributed offers, case by case; the programs say what each must give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import NoDataError  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, real, simulated  # noqa: E402


def cases(program: str) -> list[str]:
    text = (PROGRAMS / program).read_text()
    return re.findall(r"^@(?:case|nccl_only)\ndef (\w+)", text, re.MULTILINE)


DAILY = (
    "ddp",
    "fsdp1",
    "fsdp2_of_tensor_parallel",
    "sequence_parallel",
    "pipeline_1f1b",
    "distributed_checkpoints",
)
"""One kind of each mechanism; the others are parts of these, combine them, or order them anew."""


@pytest.mark.adr("0062-D1")
@pytest.mark.parametrize("case", cases("collectives.py"))
def test_a_way_of_calling_collectives_gives_what_it_must(case: str) -> None:
    simulated("collectives.py", "cuda", case, nprocs=4)


@pytest.mark.slow
@pytest.mark.adr("0062-D3")
def test_the_same_is_true_of_host_tensors_here_and_in_real_processes() -> None:
    simulated("collectives.py", "cpu", nprocs=4)
    real("collectives.py", "cpu", nprocs=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    daily(*DAILY, of=cases("parallelism.py")),
)
def test_a_kind_of_parallel_training_learns_what_one_process_does(
    case: str, tmp_path: Path
) -> None:
    simulated("parallelism.py", tmp_path, case, nprocs=4)


@pytest.mark.slow
def test_sync_batch_norm_of_shards_is_batch_norm_of_the_whole() -> None:
    simulated("sync_batch_norm.py", nprocs=2)


def test_sync_batch_norm_takes_the_same_time_without_data() -> None:
    program = "sync_batch_norm_times.py"
    runs = (simulated(program, nprocs=2, data=data).op_log.instances for data in (True, False))
    with_data, without = ([(item.template.name, item.ends_ps) for item in run] for run in runs)
    assert with_data == without
    assert any(name == "aten.batch_norm_gather_stats_with_counts" for name, _ in without)


def test_other_masks_than_those_of_sync_batch_norm_are_refused_without_data() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        simulated("sync_batch_norm_times.py", "mask", nprocs=2, data=False)
    assert caught.value.split(NoDataError)[1] is None
