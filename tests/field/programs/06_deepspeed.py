# DeepSpeed's ZeRO on two ranks.
# run: kernbench torchrun --nproc-per-node 2 {file} 1
# run: kernbench torchrun --nproc-per-node 2 {file} 3
# needs: deepspeed
# expect: LOSS 0 3
# expect: LOSS 1 3

import sys

import deepspeed
import torch
import torch.nn as nn

stage = int(sys.argv[1]) if len(sys.argv) > 1 else 1
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
cfg = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": stage},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}
e, *_ = deepspeed.initialize(model=m, model_parameters=m.parameters(), config=cfg)
torch.manual_seed(1 + e.local_rank)
for i in range(4):
    x = torch.randn(4, 16).to(e.device)
    loss = (e(x) - x).square().mean()
    e.backward(loss)
    e.step()
    print("LOSS", e.local_rank, i, loss.item())
