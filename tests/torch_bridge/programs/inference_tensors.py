"""Collectives of tensors made in inference mode, on one rank, the other, or both; and after it.

python inference_tensors.py DEVICE FOLDER
"""

import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

device, folder = sys.argv[1:]
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank = dist.get_rank()
result: dict[Any, Any] = {}


def numbers():
    return torch.arange(2.0, device=device) + 10 * rank


def empty(count=2):
    return torch.empty(count, device=device)


def of(collective, *args, **kwargs):
    x = numbers()
    collective(x, *args, **kwargs)
    return x


def filled(collective, outputs, *args, **kwargs):
    collective(outputs, *args, **kwargs)
    return outputs


def objects():
    values = [None, None]
    dist.all_gather_object(values, {"rank": rank})
    return values


CASES = {
    "all_reduce": lambda: of(dist.all_reduce),
    "max": lambda: of(dist.all_reduce, op=dist.ReduceOp.MAX),
    "broadcast": lambda: of(dist.broadcast, 1),
    "reduce": lambda: of(dist.reduce, 0) if rank == 0 else [of(dist.reduce, 0)][1:],
    "all_gather": lambda: filled(dist.all_gather, [empty(), empty()], numbers()),
    "in_one": lambda: filled(dist.all_gather_into_tensor, empty(4), numbers()),
    "gather": lambda: filled(
        lambda into, x: dist.gather(x, into), [empty(), empty()] if rank == 0 else None, numbers()
    ),
    "scatter": lambda: filled(
        dist.scatter, empty(), [numbers(), numbers()] if rank == 1 else None, 1
    ),
    "all_to_all": lambda: filled(dist.all_to_all_single, empty(), numbers()),
    "pair": lambda: of(dist.send, 1) if rank == 0 else of(dist.recv, 0),
    "functional": lambda: functional.all_reduce(numbers(), "sum", dist.group.WORLD) + 0,
    "objects": objects,
}
for name, case in CASES.items():
    for evaluating in (0,), (1,), (0, 1):
        with torch.inference_mode() if rank in evaluating else nullcontext():
            values = case()
        # Tensors of inference mode cannot be saved as such.
        result[name, evaluating] = torch.utils._pytree.tree_map_only(
            torch.Tensor, torch.Tensor.tolist, values
        )
with torch.inference_mode():
    loss = numbers()
dist.all_reduce(loss)
result["after the mode"] = loss.tolist()
torch.save(result, f"{folder}/{device}{rank}.pt")
dist.destroy_process_group()
