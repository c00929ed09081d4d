# DeepSpeed's ZeRO on two ranks, with the losses of DDP.
# run: kernbench torchrun --nproc-per-node 2 {file} 1
# run: kernbench torchrun --nproc-per-node 2 {file} 2
# run: kernbench torchrun --nproc-per-node 2 {file} 3
# needs: deepspeed
# expect: LOSS 0 as of DDP
# expect: LOSS 1 as of DDP

import copy
import sys

import deepspeed
import torch
import torch.nn as nn

stage = int(sys.argv[1]) if len(sys.argv) > 1 else 1
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
plain = copy.deepcopy(m)
cfg = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": stage},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}
e, *_ = deepspeed.initialize(model=m, model_parameters=m.parameters(), config=cfg)
ddp = nn.parallel.DistributedDataParallel(plain.to(e.device))
adam = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
torch.manual_seed(1 + e.local_rank)
for _ in range(4):
    x = torch.randn(4, 16).to(e.device)
    loss = (e(x) - x).square().mean()
    e.backward(loss)
    e.step()
    expected = (ddp(x) - x).square().mean()
    adam.zero_grad()
    expected.backward()
    adam.step()
    assert abs(loss.item() - expected.item()) < 1e-6, (loss.item(), expected.item())
print("LOSS", e.local_rank, "as of DDP")
