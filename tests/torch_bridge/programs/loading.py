"""Loads batches with workers: python loading.py PATH WORKERS."""

import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

ITEM_S, STEP_S = 0.01, 0.02


class Items(Dataset):
    def __init__(self):
        self.seen = 0

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.seen += 1
        time.sleep(ITEM_S)
        worker = get_worker_info()
        return torch.tensor([index, -1 if worker is None else worker.id, self.seen])


class Stream(IterableDataset):
    start, end = 0, 8

    def __iter__(self):
        return iter(range(self.start, self.end))


def divide(worker_id):
    """Let each worker have its own part, as PyTorch's documentation does."""
    worker = get_worker_info()
    worker.dataset.start, worker.dataset.end = 4 * worker_id, 4 * worker_id + 4
    random.seed(worker_id)
    torch.manual_seed(worker_id)


if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.manual_seed(7)
random.seed(7)
items, workers = Items(), int(sys.argv[2])
loader = DataLoader(items, batch_size=8, num_workers=workers, pin_memory=True)
begun = time.perf_counter()
batches = []
for batch in loader:
    batches.append(batch)
    batch.to("cuda", non_blocking=True)
    time.sleep(STEP_S)
took = time.perf_counter() - begun
result = [torch.cat(batches).tolist(), items.seen, get_worker_info() is None]
if workers:
    parts = DataLoader(Stream(), batch_size=2, num_workers=2, worker_init_fn=divide)
    result.append([part.tolist() for part in parts])
result += [torch.initial_seed(), random.random()]
with Path(f"{sys.argv[1]}{rank}").open("w") as file:
    print(took, *result, sep="\n", file=file)
