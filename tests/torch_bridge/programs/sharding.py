"""DTensors, whose rules all ranks share.

python sharding.py CASE [ARGUMENTS]"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.functional import scaled_dot_product_attention as attention


def lists():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    meshes = [init_device_mesh("cuda", (2,)) for _ in range(2)]
    whole = [torch.arange(8.0).reshape(4, 2) + index for index in range(3)]
    for placement in (Shard(0), Shard(1), Replicate()):
        distribute_tensors = [
            distribute_tensor(item.cuda(), meshes[number > 0], [placement])
            for number, item in enumerate(whole)
        ]
        result = torch._foreach_mul(distribute_tensors, 2.0)
        torch._foreach_add_(result, distribute_tensors)
        for tensor, expected in zip(result, whole, strict=False):
            assert any(tensor.device_mesh is mesh for mesh in meshes)
            assert tensor.placements == (placement,)
            assert torch.equal(tensor.full_tensor().cpu(), expected * 3)


def other_operations():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    whole = torch.arange(48.0).reshape(6, 8)
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    for placement in (Shard(0), Shard(1), Replicate()):
        tensor = distribute_tensor(whole.cuda(), mesh, [placement])
        # The first needs its operand elsewhere, the second has a shape among its arguments.
        for result, expected in (
            (torch.softmax(tensor, -1), torch.softmax(whole, -1)),
            (tensor.view(6, 2, 4), whole.view(6, 2, 4)),
            (tensor @ tensor.t(), whole @ whole.t()),
        ):
            assert result.device_mesh is mesh
            torch.testing.assert_close(result.full_tensor().cpu(), expected)


def unequal_shards():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (2,))
    whole = torch.arange(20.0).reshape(5, 4)
    tensor = distribute_tensor(whole.cuda(), mesh, [Shard(0)])
    view = tensor.view(5, 2, 2)
    assert view.to_local().shape == (3 - rank, 2, 2)
    assert torch.equal(view.full_tensor().cpu(), whole.view(5, 2, 2))


def attention_of_heads():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    mesh = init_device_mesh("cuda", (2, 2))
    torch.manual_seed(0)
    shapes = ((4, 2, 8, 16), (4, 2, 12, 16), (4, 2, 12, 16))
    host = [torch.randn(shape, requires_grad=True) for shape in shapes]
    both, batch, whole = (Shard(0), Shard(1)), (Shard(0), Replicate()), (Replicate(), Replicate())
    for mask, sharded in (
        (None, whole),
        (torch.ones(8, 12, dtype=torch.bool).tril(4), whole),
        (torch.randn(1, 1, 8, 12), whole),
        (torch.randn(4, 1, 8, 12), batch),
        (torch.randn(4, 1, 8, 12), whole),
        (torch.randn(4, 2, 8, 12), both),
    ):
        expected = attention(*host, attn_mask=mask)
        gradients = torch.autograd.grad(expected.square().sum(), host)
        for placements in (both, (Shard(1), Replicate()), whole):
            distribute_tensors = [
                distribute_tensor(item.detach().cuda(), mesh, placements) for item in host
            ]
            distribute_tensors = [item.requires_grad_() for item in distribute_tensors]
            seen = None
            if mask is not None:
                seen = distribute_tensor(mask.cuda(), mesh, sharded)
            result = attention(*distribute_tensors, attn_mask=seen)
            if placements == both:
                assert result.placements == both, (sharded, result.placements)
            torch.testing.assert_close(result.full_tensor().cpu(), expected)
            result.square().sum().backward()
            for item, gradient in zip(distribute_tensors, gradients, strict=False):
                torch.testing.assert_close(item.grad.full_tensor().cpu(), gradient)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
