"""Collectives on the links of the machine.

python distributed.py CASE [FOLDER]
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())


def names(folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    pair = dist.new_group([0, 1])
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("a", "b"))
    gloo = dist.new_group(backend="gloo")
    said = {
        "backend": dist.get_backend(),
        "gloo": dist.get_backend(gloo),
        "inside": dist.get_rank(pair),
        "row": dist.get_process_group_ranks(mesh["b"].get_group()),
        "column": dist.get_process_group_ranks(mesh["a"].get_group()),
    }
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(said))


def all_reduce() -> None:
    dist.all_reduce(torch.empty(1 << 16, device="cuda"))


def wait() -> None:
    x = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(x, async_op=True).wait()
    x.add_(1)


def by_peers(asked: str, buffers: str) -> None:
    """Reduce what PyTorch's own kernels take, and what they leave to NCCL."""
    import os

    from torch.distributed import _functional_collectives as functional

    os.environ["ENABLE_INTRA_NODE_COMM"] = asked
    dist.destroy_process_group()
    dist.init_process_group("nccl")
    assert torch.cuda.memory_allocated() == int(buffers) * 10 << 20

    def check(x: torch.Tensor, op: dist.ReduceOp.RedOpType, expected: float) -> None:
        dist.all_reduce(x, op)
        torch.testing.assert_close(x, torch.full_like(x, expected), rtol=0, atol=0)

    total = float(size * (size + 1) // 2)
    for count in (4096, 128 << 10, 1 << 20, 8 << 20):
        check(torch.full((count,), rank + 1.0, device="cuda", dtype=torch.bfloat16),
              dist.ReduceOp.SUM, total)  # fmt: skip
    of_all = torch.full((4, 1024), rank + 1.0, device="cuda")
    check(of_all[1], dist.ReduceOp.SUM, total)
    torch.testing.assert_close(of_all[2], torch.full_like(of_all[2], rank + 1.0))
    check(torch.full((4096,), rank + 1.0, device="cuda"), dist.ReduceOp.MAX, float(size))
    check(torch.full((4096,), rank + 1.0, device="cuda", dtype=torch.float16),
          dist.ReduceOp.SUM, total)  # fmt: skip
    reduced = functional.all_reduce(
        torch.full((4096,), rank + 1.0, device="cuda"), "sum", dist.group.WORLD
    )
    assert (reduced + 0 == total).all()


def on_the_host() -> None:
    dist.all_reduce(torch.ones(4), group=dist.new_group(backend="gloo"))
    dist.barrier()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
