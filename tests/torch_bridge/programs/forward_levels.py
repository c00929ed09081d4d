"""Ranks that differentiate forward while others do: python forward_levels.py DEVICE FOLDER."""

import sys

import torch
import torch.autograd.forward_ad as forward
import torch.distributed as dist

device, folder = sys.argv[1:]
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank = dist.get_rank()
values = []
for _ in range(2):
    with forward.dual_level():
        x = torch.full((2,), 1.0 + rank, device=device)
        dual = forward.make_dual(x, torch.ones_like(x))
        dist.barrier()  # All are inside.
        tangent = forward.unpack_dual(dual**3).tangent
        assert tangent is not None
        values.append(tangent.tolist())
        try:
            with forward.dual_level():
                values.append("nested")
        except RuntimeError as error:
            values.append(str(error).partition(".")[0])
    values.append(torch.func.jvp(torch.sin, (x,), (x,))[1].tolist())
torch.save(values, f"{folder}/{device}{rank}.pt")
