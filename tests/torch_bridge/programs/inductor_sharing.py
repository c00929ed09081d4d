"""What ranks compile alike is compiled once, and runs on each rank's own device."""

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
own = torch.device("cuda", rank)

# Ranks share the code of a layer: there are more of them than one process may recompile.
torch._dynamo.config.recompile_limit = size - 1
torch.manual_seed(0)
layer, ones = torch.nn.Linear(8, 8), torch.ones(2, 8)
expected = layer(ones)
step = torch.compile(layer.to(own), fullgraph=True)
assert torch.allclose(step(ones.to(own)).cpu(), expected, rtol=1e-5, atol=1e-6)
torch._dynamo.config.recompile_limit = 8


def compiled_times(function, *args):
    """Return a compiled function's result, and how many of the ranks' graphs were compiled.

    No rank goes on before all have run it, so that the count is of all ranks.
    """
    counted = counters["aot_autograd"]
    dist.barrier()
    before = counted["autograd_cache_miss"]
    dist.barrier()
    result = torch.compile(function, fullgraph=True)(*args)
    dist.barrier()
    return result, counted["autograd_cache_miss"] - before


def lies_on(tensor, device):
    return tensor.device == device and tensor.cpu().device.type == "cpu"


x = torch.arange(12.0).reshape(3, 4).to(own) + rank


def scaled(x):
    return torch.softmax(x, -1) * 2


built, times = compiled_times(scaled, x)
assert times == 1, times
assert lies_on(built, own)
assert torch.allclose(built.cpu(), scaled(x.cpu()))


# What Inductor leaves to PyTorch names a device in the file.
def drawn(x):
    return x.sum() + torch.randperm(50, device=x.device).sort()[0]


built, times = compiled_times(drawn, x)
assert times == 1, times
assert lies_on(built, own)
assert torch.equal(built.cpu(), x.cpu().sum() + torch.arange(50))


# So does a graph without inputs.
def made_there():
    return torch.randperm(9, device=own).sort()[0] + torch.ones(9, device=own)


built, times = compiled_times(made_there)
assert times == 1, times
assert lies_on(built, own)

# Another rank's device is not the own one: ranks 0 and 1 mean each other's, rank 2 that of rank 0.
other = torch.device("cuda", 1 - rank if rank < 2 else 0)


def moved(x):
    return (x + 1).to(other) + torch.randperm(4, device=other).sort()[0]


built, times = compiled_times(moved, x)
assert lies_on(built, other)
assert torch.equal(built.cpu(), x.cpu() + 1 + torch.arange(4))


# Ranks that differ compile each their own: a number, a shape.
def by_rank(x):
    return torch.softmax(x, -1) * (rank + 3)


built, times = compiled_times(by_rank, x)
assert times == size, times
assert torch.allclose(built.cpu(), torch.softmax(x.cpu(), -1) * (rank + 3))
wider = torch.arange(40.0)[: 20 + rank].to(own)
built, times = compiled_times(lambda x: x.cos() / 3, wider)
assert times == size, times
assert torch.allclose(built.cpu(), wider.cpu().cos() / 3)

# Masks that a backward pass draws again come from the generator of the rank's own device.
weight = torch.full((256,), float(rank + 1), device=own, requires_grad=True)


def dropped(weight):
    return checkpoint(lambda w: torch.dropout(w.cos(), 0.5, True) * w, weight, use_reentrant=False)


torch.cuda.manual_seed(rank)
built, times = compiled_times(dropped, weight)
assert times == 1, times
torch.cuda.manual_seed(rank)
assert torch.equal(torch.compile(dropped)(weight), built)
built.sum().backward()
dist.barrier()
is_kept = built.detach() != 0
slope = 2 * (weight.cos() - weight.sin() * weight)
assert 64 < int(is_kept.sum()) < 192
assert torch.allclose(weight.grad.cpu(), (slope * is_kept).cpu(), atol=1e-5)

# The number of a captured device is not that of another rank's.
torch.cuda.set_device(rank)
captured = torch.compile(lambda x: (x - 5).relu().cos() + 1, mode="reduce-overhead")
for step in range(3):
    answer = captured(x + step)
    assert lies_on(answer, own)
    assert torch.allclose(answer.cpu(), (x + step - 5).relu().cos().cpu() + 1)

# Whoever compiles first: here it is the last rank, whose number is not that of the device in files.
if rank < size - 1:
    dist.barrier()


def noised(x):
    return x.sin() + torch.randperm(4, device=x.device).sort()[0]


built = torch.compile(noised)(x)
if rank == size - 1:
    dist.barrier()
assert lies_on(built, own)
assert torch.allclose(built.cpu(), x.cpu().sin() + torch.arange(4))

# A functional collective's result, which the compiler waits for before it looks at it.
part = functional.reduce_scatter_tensor(
    torch.ones(2 * size, device=own), "sum", 0, dist.group.WORLD
)
assert isinstance(part, functional.AsyncCollectiveTensor)
assert torch.compile(scaled)(part).tolist() == [1, 1]
