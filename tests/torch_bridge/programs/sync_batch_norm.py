"""SyncBatchNorm over uneven shards of a batch, against BatchNorm on all of it."""

import copy

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
inputs = torch.randn(8, 6, 5, 3)
gradients = torch.randn(8, 6, 5, 3)
whole = torch.nn.BatchNorm2d(6)
with torch.no_grad():
    whole.weight.uniform_()
    whole.bias.uniform_()
layer = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole)).cuda()

x = inputs.clone().requires_grad_()
y = whole(x)
(y * gradients).sum().backward()


def mine(tensor):
    return tensor.split([3, 5])[rank]


def check(result, expected):
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)


my_x = mine(inputs).cuda().requires_grad_()
my_y = layer(my_x)
(my_y * mine(gradients).cuda()).sum().backward()
check(my_y, mine(y))
check(my_x.grad, mine(x.grad))
check(layer.running_mean, whole.running_mean)
check(layer.running_var, whole.running_var)
for name in ("weight", "bias"):
    total = getattr(layer, name).grad
    dist.all_reduce(total)
    check(total, getattr(whole, name).grad)
