# A Manager's queue that one rank uses alone, as Megatron's checkpoints do.
# run: kernbench torchrun --nproc-per-node 2 {file}
# expect: rank 0: 1
# expect: rank 1: 1

import torch
import torch.distributed as dist
from torch import multiprocessing as mp

if __name__ == "__main__":
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    queue = mp.get_context("spawn").Manager().Queue()
    queue.put(1)
    print(f"rank {dist.get_rank()}: {queue.get()}")
