"""What a program finds of fake tensors: their devices, and no memory taken.

python fake_tensors.py DEVICE FILE writes it. Where PyTorch has no device of that kind, it cannot
index what is on one.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch._functorch.aot_autograd import aot_function
from torch._functorch.compilers import nop
from torch._subclasses.fake_tensor import FakeTensorMode

KIND, FILE = sys.argv[1:]
real = torch.ones(2, 3, device=KIND)
result = {}


def note(name, *tensors):
    result[name] = [
        [item.device.type == KIND, item.is_cuda == (KIND == "cuda")] for item in tensors
    ]


with FakeTensorMode() as mode:
    x, h = torch.randn(4, 4, device=KIND), torch.zeros(4, 4)
    note("made", x, torch.full((2,), 1.0, device=KIND), torch.tensor([1.0], device=KIND))
    note("like", torch.empty_like(x), x.new_zeros(3), torch.zeros_like(x))
    note("moved", h.to(KIND), h.to(x.device, torch.half), x.half())
    note("indexed", x[0], x[torch.tensor([1, 2], device=KIND)], x.t()[:2], x.topk(2)[0])
    model = torch.nn.Sequential(torch.nn.Linear(4, 8, device=KIND), torch.nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    loss = F.cross_entropy(model(x), torch.zeros(4, dtype=torch.long, device=KIND))
    loss.backward()
    optimizer.step()
    weight = model[0].weight
    note("trained", loss, weight, weight.grad, optimizer.state[weight]["exp_avg"])
    large = torch.empty(1 << 45, device=KIND)
note("afterwards", x, large)
note("of a real one", mode.from_tensor(real))

traced = aot_function(lambda x: (x.sin() * x[0]).sum(), nop)
leaf = real.clone().requires_grad_()
traced(leaf).backward()
note("traced", leaf.grad)
result["gradient"] = leaf.grad.tolist()


@torch.library.custom_op("fakes::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)
result["checked"] = torch.library.opcheck(scaled, (leaf.detach().requires_grad_(), 3.0))
# A fake tensor of 128 TiB takes no memory.
assert KIND == "cpu" or torch.cuda.max_memory_allocated() < 1 << 20
Path(FILE).write_text(json.dumps(result))
