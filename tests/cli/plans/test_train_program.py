from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.plans import PROGRAM

SMALL = {
    "hidden": 64, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 128,
    "vocabulary": 256, "seq": 16, "microbatch": 2, "microbatches": 2, "tp": 2, "dp": 2,
}  # fmt: skip
ONE_BATCH = f"""
import json, sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import torch, train
import torch.distributed as dist

losses = []
loss_of = train.loss_of

def kept(logits, targets):
    loss = loss_of(logits, targets)
    losses.append(float(loss.detach()))
    return loss

train.loss_of = kept
config = train.TrainingConfig(**json.loads(sys.argv[1]))
training = train.Training(config)
for group in training.optimizer.param_groups:
    group["lr"] = 1e-2
for _ in range(6):
    torch.manual_seed(3)
    training.step()
if dist.get_rank() == 0:
    print("LOSSES", json.dumps(losses))
dist.destroy_process_group()
"""


@pytest.mark.adr("0255-D2")
@pytest.mark.campaign
@pytest.mark.parametrize("shard", ["ddp", "zero1", "zero3"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_replicas_of_split_tensors_learn_a_batch(
    tmp_path: Path, shard: str, sequence_parallel: bool
) -> None:
    program = tmp_path / "one_batch.py"
    program.write_text(ONE_BATCH)
    config = json.dumps({**SMALL, "shard": shard, "sequence_parallel": sequence_parallel})
    words = ["torchrun", "--machine", "h100-sxm:4", "--nproc-per-node", "4", str(program), config]
    command = [sys.executable, "-m", "kernbench", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "LOSSES" in line)
    losses = json.loads(line.partition("LOSSES ")[2])
    assert losses[-1] < 0.7 * losses[0]
