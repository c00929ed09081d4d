"""Uses, on two ranks, parts of what a run installs; each rank saves what it has seen.

python installed.py FOLDER, with the variables of torchrun.
"""

import atexit
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])


def main() -> None:
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl")
    x = torch.ones(2, 2, 16, 8, device="cuda")
    seen: dict[str, object] = {"rank": RANK, "device": x.device}
    seen["attention"] = F.scaled_dot_product_attention(x, x, x, is_causal=True).shape
    seen["flex"] = flex_attention(x, x, x).shape
    total = torch.full((3,), float(RANK + 1), device="cuda")
    dist.all_reduce(total)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = total + total
    graph.replay()
    seen["sum"] = doubled.shape
    with torch.autocast("cuda", dtype=torch.bfloat16):
        seen["autocast"] = (x @ x.transpose(-1, -2)).dtype
    torch.cuda._sleep(1000)
    thread = threading.Thread(target=lambda: seen.update(thread=torch.cuda.current_device()))
    thread.start()
    thread.join()
    tensor = torch.cond(torch.tensor(True), lambda item: item + 1, lambda entry: entry, (total,))
    seen["cond"] = tensor.device
    seen["compiled"] = torch.compile(torch.nn.Linear(8, 8).cuda())(x).shape
    seen["tf32"] = torch.backends.cuda.matmul.allow_tf32
    with torch.profiler.record_function("named"):
        torch.cuda.synchronize()
    seen["pinned"] = torch.ones(3).pin_memory().is_pinned()
    seen["time"] = torch.cuda.Event(enable_timing=True).query()
    dist.destroy_process_group()
    atexit.register(lambda: torch.save(seen, FOLDER / f"rank{RANK}.pt"))


if __name__ == "__main__":
    main()
