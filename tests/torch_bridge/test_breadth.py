"""What torch.distributed offers, case by case; the programs say what each must give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import PROGRAMS, real, simulated  # noqa: E402


def cases(program: str) -> list[str]:
    text = (PROGRAMS / program).read_text()
    return re.findall(r"^@(?:case|nccl_only)\ndef (\w+)", text, re.MULTILINE)


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
@pytest.mark.parametrize("case", cases("parallelism.py"))
def test_a_kind_of_parallel_training_learns_what_one_process_does(
    case: str, tmp_path: Path
) -> None:
    simulated("parallelism.py", tmp_path, case, nprocs=4)


@pytest.mark.slow
def test_sync_batch_norm_of_shards_is_batch_norm_of_the_whole() -> None:
    simulated("sync_batch_norm.py", nprocs=2)
