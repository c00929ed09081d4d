"""Programs whose memory is known in closed form.

python memory_use.py CASE
"""

import os
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, HIDDEN, CLASSES, TOKENS, LAYERS = 256, 1024, 10, 512, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.again = again

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    x = torch.randn(TOKENS, WIDTH, device="cuda")
    y = torch.randint(0, CLASSES, (TOKENS,), device="cuda")
    for _ in range(steps):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def training() -> None:
    model = Net().cuda()
    train(model, torch.optim.Adam(model.parameters()))
    print(torch.cuda.max_memory_allocated())


def training_with_checkpoints() -> None:
    model = Net(again=True).cuda()
    train(model, torch.optim.Adam(model.parameters()))


def training_without_state() -> None:
    model = Net().cuda()
    # Without several tensors at once: a step allocates nothing.
    train(model, torch.optim.SGD(model.parameters(), 0.1, foreach=False))


class KVCache:
    def __init__(self) -> None:
        self.keys = None

    def update(self, keys):
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys])
        return self.keys


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("k_cache", torch.zeros(TOKENS, WIDTH))
        self.register_buffer("angles", torch.zeros(WIDTH))

    def forward(self, x, cache):
        keys = cache.update(self.project(x) + self.angles)
        return (keys @ keys.T).sum() + self.k_cache.sum()


@torch.no_grad()
def serving() -> None:
    model, cache = Attention().cuda(), KVCache()
    for _ in range(4):
        model(torch.ones(TOKENS, WIDTH, device="cuda"), cache)
    torch.empty(64 << 20, device="cuda")  # the peak


def parallel() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    model = Net().cuda()
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=False)
    train(wrapped, torch.optim.Adam(model.parameters()))


def sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    model = Net().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    train(model, torch.optim.Adam(model.parameters()))
    print(torch.cuda.max_memory_allocated())


def snapshot(path: str) -> None:
    memory = torch.cuda.memory
    memory._record_memory_history()
    model = Net().cuda()
    train(model, torch.optim.Adam(model.parameters()))
    result = memory._snapshot()
    memory._dump_snapshot(path)
    assert pickle.loads(Path(path).read_bytes())["segments"] == result["segments"]
    assert sum(item["total_size"] for item in result["segments"]) == torch.cuda.memory_reserved()
    used = torch.cuda.memory_allocated()
    assert sum(item["allocated_size"] for item in result["segments"]) == used
    stats = torch.cuda.memory_stats()
    in_use = [
        block
        for item in torch.cuda.memory_snapshot()
        for block in item["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert len(in_use) == stats["allocation.all.current"]
    assert sum(item["requested_size"] for item in in_use) == stats["requested_bytes.all.current"]
    now = most = 0
    for item in result["device_traces"][0]:
        if item["action"] in ("alloc", "free_completed"):
            size = -(-item["size"] // 512) * 512
            now += size if item["action"] == "alloc" else -size
            most = max(most, now)
    assert now == used
    assert most == torch.cuda.max_memory_allocated()
    memory._record_memory_history(enabled=None)
    kept = torch.ones(4, device="cuda")
    assert memory._snapshot()["device_traces"] == result["device_traces"]
    memory._record_memory_history("state")
    kept = torch.ones(4 << 20, device="cuda")
    states = [block for entry in memory._snapshot()["segments"] for block in entry["blocks"]]
    (mine,) = [state for state in states if state["requested_size"] == kept.nbytes]
    assert mine["frames"][0]["name"] == "snapshot"
    assert len(memory._snapshot()["device_traces"][0]) == len(result["device_traces"][0])


def the_latest_events_only() -> None:
    memory = torch.cuda.memory
    memory._record_memory_history(max_entries=3, context=None, skip_actions=["free_requested"])
    kept = [torch.ones(8, device="cuda") for _ in range(4)]
    del kept
    assert [item["action"] for item in memory._snapshot()["device_traces"][0]] == (
        ["free_completed"] * 3
    )


def wrong(name: str, value: str) -> None:
    torch.cuda.memory._record_memory_history(**{name: eval(value)})


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
