"""What PyTorch's compiler makes for a simulated device computes as the host does, in time."""

import copy
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def difference(result, expected):
    result, expected = result.detach().float().cpu(), expected.detach().float().cpu()
    return ((result - expected).abs().max() / expected.abs().max().clamp(min=1e-12)).item()


def now():
    torch.cuda.synchronize()
    return time.perf_counter()


def epilogue(x, bias, weight):
    y = F.gelu(x + bias)
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


torch.manual_seed(0)

# A fused kernel: right, one launch, and compiling it takes no simulated time.
host = torch.randn(64, 256), torch.randn(256), torch.randn(256)
device = [item.cuda() for item in host]
compiled = torch.compile(epilogue)
start = now()
first = compiled(*device)
took_first = now() - start
assert difference(first, epilogue(*host)) < 1e-5
start = now()
compiled(*device)
took_again = now() - start
assert took_first < took_again + 5e-3, (took_first, took_again)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (
            item.view(2, 8, 2, 16).transpose(1, 2) for item in self.into(self.norm(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(2, 8, 32))


# Training: losses as on the host, in one graph.
reference = Block()
model = copy.deepcopy(reference).cuda()
step = torch.compile(model, fullgraph=True)
optimizers = [torch.optim.SGD(item.parameters(), lr=0.1) for item in (reference, model)]
for _ in range(2):
    x = torch.randn(2, 8, 32)
    losses = [reference(x).square().mean(), step(x.cuda()).square().mean()]
    for loss, optimizer in zip(losses, optimizers, strict=True):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert difference(losses[1], losses[0]) < 1e-5
for mine, other in zip(model.parameters(), reference.parameters(), strict=True):
    assert difference(mine, other) < 1e-4
assert next(iter(step.state_dict())).startswith("_orig_mod.")


# Gradients under autocast are eager's, none is lost.
def loss_of(linear, x, target):
    with torch.autocast("cuda", torch.bfloat16):
        return F.cross_entropy(linear(x), target)


linear = nn.Linear(64, 16).cuda()
x, target = torch.randn(32, 64).cuda(), torch.randint(0, 16, (32,)).cuda()
gradients = []
for function in (loss_of, torch.compile(loss_of)):
    linear.zero_grad()
    function(linear, x, target).backward()
    gradients.append([parameter.grad.clone() for parameter in linear.parameters()])
for eager, result in zip(*gradients, strict=True):
    assert difference(result, eager) < 2e-2


# Shapes that vary, a graph break, and a graph that must not break.
def rows(x):
    return torch.softmax(x, -1).sum(0)


dynamic = torch.compile(rows, dynamic=True)
for size in (3, 5, 17):
    x = torch.randn(size, 40)
    assert difference(dynamic(x.cuda()), rows(x)) < 1e-5


def breaks(x):
    x = x.sin()
    print("between two graphs")
    return x + 1


x = torch.randn(100)
assert difference(torch.compile(breaks)(x.cuda()), x.sin() + 1) < 1e-5
try:
    torch._dynamo.reset()
    torch.compile(breaks, fullgraph=True)(x.cuda())
except torch._dynamo.exc.Unsupported:
    pass
else:
    raise AssertionError("a graph break was not refused")
assert torch._dynamo.explain(breaks)(x.cuda()).graph_count == 2

# Graphs of the bridge for mode="reduce-overhead".
graphed = torch.compile(epilogue, mode="reduce-overhead")
for seed in range(4):
    torch.manual_seed(seed)
    host = torch.randn(64, 256), torch.randn(256), torch.randn(256)
    assert difference(graphed(*(item.cuda() for item in host)), epilogue(*host)) < 1e-5


# Devices that are named without an index are the current one.
def moved(x, y):
    later = (x.cuda(), x.to("cuda"), x.to(device=torch.device("cuda")), y.to(x.device).cuda())
    tensor = torch.tensor([1.0, 2.0, 3.0], device="cuda") * torch.tensor(1.5, device="cuda")
    return sum(later) + tensor + y


x = torch.randn(3)
cpu = torch.compile(moved, fullgraph=True)(x, x.cuda())
assert cpu.device == torch.device("cuda", 0)
assert difference(cpu, 5 * x + torch.tensor([1.5, 3.0, 4.5])) < 1e-6


# Functions that the bridge replaces are the ones that were compiled: nothing is compiled again.
def positions(x):
    return x + torch.arange(x.shape[-1], device=x.device)


torch._dynamo.utils.counters.clear()
numbered = torch.compile(positions)
for _ in range(3):
    x = torch.randn(4, 6)
    assert difference(numbered(x.cuda()), positions(x)) < 1e-6
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


# Variables of the process are known to what is compiled.
def named(x):
    return x + float(os.environ["KERNBENCH_TEST_ADDED"]) + float(os.environ.get("MISSING", "1"))


os.environ["KERNBENCH_TEST_ADDED"] = "2"
torch._dynamo.utils.counters.clear()
adds = torch.compile(named, fullgraph=True)
for _ in range(3):
    x = torch.randn(4, 6)
    assert difference(adds(x.cuda()), x + 3) < 1e-6
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
assert os.environ["KERNBENCH_TEST_ADDED"] == "2"


# So is attention, which is another function to the compiler; a mask may have a gradient.
def attends(q, bias):
    return F.scaled_dot_product_attention(q, q, q, attn_mask=bias)


torch._dynamo.utils.counters.clear()
masked = torch.compile(attends, fullgraph=True)
for _ in range(3):
    q, bias = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 8, requires_grad=True)
    on_device = bias.detach().cuda().requires_grad_()
    cpu, expected = masked(q.cuda(), on_device), attends(q, bias)
    assert difference(cpu, expected) < 1e-5
    weights = torch.randn_like(expected)
    (cpu * weights.cuda()).sum().backward()
    (expected * weights).sum().backward()
    assert difference(on_device.grad, bias.grad) < 1e-4
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

# Dropout in it leaves out probabilities, and scales the others.
q, every = torch.randn(1, 2, 8, 16), torch.eye(8).expand(1, 2, 8, 8)
attended = F.scaled_dot_product_attention(q, q, every, is_causal=True)
dropping = torch.compile(lambda q, v: F.scaled_dot_product_attention(q, q, v, None, 0.5, True))
cpu = dropping(q.cuda(), every.cuda()).cpu()
kept = cpu != 0
assert 8 < int(kept.sum()) < 64, int(kept.sum())
assert torch.allclose(cpu, 2 * attended * kept, atol=1e-5)

# Nothing of kernbench is traced, but for what stands in for PyTorch's functions.
own = {
    str(module.__file__) for name, module in sys.modules.items() if name.startswith("kernbench.")
}
own = {item for item in own if "torch_bridge/compiler/traced.py" not in item}
assert len(own) > 500, len(own)
assert not [item for item in own if not torch._dynamo.trace_rules.check_file(item).skipped]
