"""What torch.distributed offers, case by case; the programs say what each must give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import NoDataError  # noqa: E402
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


SYNC_BATCH_NORM = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
layer = torch.nn.SyncBatchNorm(6).cuda()
for dtype in (torch.float32, torch.bfloat16):
    x = torch.randn(4, 6, 5, 3, device="cuda", dtype=dtype, requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype is torch.bfloat16):
        y = layer(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == dtype and y.shape == x.grad.shape == x.shape
    assert layer.weight.grad.shape == (6,)
"""


def test_sync_batch_norm_takes_the_same_time_without_data(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(SYNC_BATCH_NORM)
    runs = (simulated(path, nprocs=2, data=data).op_log.instances for data in (True, False))
    with_data, without = ([(each.template.name, each.ends_ps) for each in run] for run in runs)
    assert with_data == without
    assert any(name == "aten.batch_norm_gather_stats_with_counts" for name, _ in without)


def test_other_masks_than_those_of_sync_batch_norm_are_refused_without_data(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(SYNC_BATCH_NORM + "\nc = torch.randn(2, 1, device='cuda'); c[c[:, 0] >= 1]\n")
    with pytest.raises(BaseExceptionGroup) as caught:
        simulated(path, nprocs=2, data=False)
    assert caught.value.split(NoDataError)[1] is None
