"""``torch.compile`` compiles nothing, and what it returns looks as PyTorch's own does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]

PROGRAM = """
import copy, pickle, sys, torch
inner = torch.nn.Linear(2, 2).cuda()
model = torch.compile(inner, mode="reduce-overhead")
assert list(model.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
assert [name for name, _ in model.named_modules()] == ["", "_orig_mod"]
assert model._orig_mod is inner and model.weight is inner.weight
seen = []
inner.register_forward_hook(lambda *args: seen.append("inner"))
model.register_forward_hook(lambda *args: seen.append("outer"))
x = torch.ones(3, 2, device="cuda")
assert torch.equal(model(x), inner(x)) and seen == ["inner", "outer", "inner"]
model(x).sum().backward()
assert inner.weight.grad is not None
model.eval()
assert not inner.training and not model.training
inner.train()
assert model.training
model.scale = 3
assert inner.scale == 3 and "scale" in dir(model)
del model.scale
assert not hasattr(model, "scale") and not hasattr(model, "nothing")
copied = copy.deepcopy(model)
assert copied._orig_mod is not inner and torch.equal(copied(x), model(x))
copied.load_state_dict(model.state_dict())
assert torch.compile(model)._orig_mod is inner
assert len(torch.compile(torch.nn.Sequential(inner, inner))) == 2 and bool(model)
again = pickle.loads(pickle.dumps(torch.compile(torch.nn.ReLU())))
assert type(again._orig_mod) is torch.nn.ReLU
double = torch.compile(lambda x: 2 * x)
assert torch.equal(double(x), 2 * x)
inner.compile()
inner(x)
assert isinstance(model, torch._dynamo.eval_frame.OptimizedModule)
assert "torch._dynamo.eval_frame" not in sys.modules
def ask():
    torch.compiler.cudagraph_mark_step_begin()
    torch._dynamo.reset()
    torch.compiler.reset()
    assert not torch.compiler.is_compiling()
ask()
if ASKS:
    import torch._dynamo
    from torch._dynamo.eval_frame import OptimizedModule
    torch._dynamo.mark_dynamic(x, 0)
    ask()
    assert isinstance(model, OptimizedModule)
    assert torch.compiler.disable(inner)(x).shape == x.shape
"""


CALLER = """
import sys, warnings
from pathlib import Path
from tests.torch_bridge.running import simulated
warnings.simplefilter("ignore")
for path in sys.argv[1:]:
    simulated(Path(path))
import torch._dynamo.eval_frame
assert torch._dynamo.eval_frame.OptimizedModule.__module__ == "torch._dynamo.eval_frame"
assert torch.compile.__module__ == "torch"
"""


@pytest.mark.slow
def test_modules_are_wrapped_as_by_the_compiler_whether_it_is_there_or_not(tmp_path: Path) -> None:
    paths = [tmp_path / "first.py", tmp_path / "second.py"]
    for path, asks in zip(paths, (False, True), strict=True):
        path.write_text(f"ASKS = {asks}\n{PROGRAM}")
    done = subprocess.run(
        [sys.executable, "-c", CALLER, *map(str, paths)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
