"""Attention over shards of a sequence, against attention over all of it.

argument: how keys and values go around (allgather or alltoall).
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import (
    context_parallel_unshard,
    set_rotate_method,
)

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("cp",))
set_rotate_method(sys.argv[1])
torch.manual_seed(0)
whole = [torch.randn(2, 2, 4 * size, 8).cuda().requires_grad_() for _ in range(3)]
expected = F.scaled_dot_product_attention(*whole, is_causal=True)
expected.square().sum().backward()
parts = [item.detach().clone() for item in whole]
with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 3, no_restore_buffers=set(parts)):
    assert parts[0].shape == (2, 2, 4, 8)
    for part in parts:
        part.requires_grad_()
    tensor = F.scaled_dot_product_attention(*parts, is_causal=True)
    tensor.square().sum().backward()
tensor = context_parallel_unshard(
    mesh, [tensor.detach(), *(item.grad for item in parts)], [2] * (1 + len(parts))
)
if tensor[0].any():  # without data all is 0
    for one, other in zip(tensor, [expected, *(item.grad for item in whole)], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
assert F.scaled_dot_product_attention(*whole).shape == expected.shape
