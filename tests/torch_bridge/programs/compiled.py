"""Modules that torch.compile returns look as PyTorch's own do.

python compiled.py [asks] asks torch._dynamo too, which this imports.
"""

import copy
import pickle
import sys

import torch

was_imported = "torch._dynamo.eval_frame" in sys.modules
inner = torch.nn.Linear(2, 2).cuda()
model = torch.compile(inner, mode="reduce-overhead")
assert list(model.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
assert [name for name, _ in model.named_modules()] == ["", "_orig_mod"]
assert model._orig_mod is inner
assert model.weight is inner.weight
seen = []
inner.register_forward_hook(lambda *args: seen.append("inner"))
model.register_forward_hook(lambda *args: seen.append("outer"))
x = torch.ones(3, 2, device="cuda")
assert torch.equal(model(x), inner(x))
assert seen == ["inner", "outer", "inner"]
model(x).sum().backward()
assert inner.weight.grad is not None
model.eval()
assert not inner.training
assert not model.training
inner.train()
assert model.training
model.scale = 3
assert inner.scale == 3
assert "scale" in dir(model)
del model.scale
assert not hasattr(model, "scale")
assert not hasattr(model, "nothing")
copied = copy.deepcopy(model)
assert copied._orig_mod is not inner
assert torch.equal(copied(x), model(x))
copied.load_state_dict(model.state_dict())
assert torch.compile(model)._orig_mod is inner
assert len(torch.compile(torch.nn.Sequential(inner, inner))) == 2
assert bool(model)
again = pickle.loads(pickle.dumps(torch.compile(torch.nn.ReLU())))
assert type(again._orig_mod) is torch.nn.ReLU
double = torch.compile(lambda x: 2 * x)
assert torch.equal(double(x), 2 * x)
inner.compile()
inner(x)
assert isinstance(model, torch._dynamo.eval_frame.OptimizedModule)
assert ("torch._dynamo.eval_frame" in sys.modules) is was_imported


def ask():
    torch.compiler.cudagraph_mark_step_begin()
    torch._dynamo.reset()
    torch.compiler.reset()
    assert not torch.compiler.is_compiling()


ask()
if sys.argv[1:]:
    import torch._dynamo
    from torch._dynamo.eval_frame import OptimizedModule

    torch._dynamo.mark_dynamic(x, 0)
    ask()
    assert isinstance(model, OptimizedModule)
    assert torch.compiler.disable(inner)(x).shape == x.shape
