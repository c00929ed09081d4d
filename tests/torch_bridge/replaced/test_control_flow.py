"""``torch.cond``, loops and scans as operations, and what else would be compiled."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

# What PyTorch computes eagerly, by plain Python.
CASES = {
    "cond": (
        "torch.cond(x.sum() > y.sum(), lambda a, b: a * b, lambda a, b: a.sin() - b, (x, y))",
        "x.sin() - y if x.sum() <= y.sum() else x * y",
    ),
    "a chosen branch": (
        "torch.cond(x.sum() > -100, lambda a, b: a * b, lambda a, b: a - b, (x, y))",
        "x * y",
    ),
    "while_loop": (
        "while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, a * y), "
        "(torch.zeros((), dtype=torch.int64, device=x.device), x))[1]",
        "x * y * y * y * y",
    ),
    "map": ("hops.map(lambda a, b: a * b.sum(), x, y)", "x * y.sum()"),
    "scan": (
        "torch.cat([each.flatten() for each in "
        "hops.scan(lambda c, a: (c + a * a, c * a), y[0], x, reverse=True)])",
        "torch.cat([y[0] + x.square().sum(0), torch.stack([x[i] * "
        "(y[0] + x[i + 1:].square().sum(0)) for i in range(4)]).flatten()])",
    ),
    "associative_scan": (
        "hops.associative_scan(torch.add, x, 0, combine_mode='generic')",
        "x.cumsum(0)",
    ),
    "foreach_map": (
        "torch.stack(hops.foreach_map(torch.mul, [x, y], [y, y]))",
        "torch.stack([x * y, y * y])",
    ),
}


def run(tmp_path: Path, source: str, **options) -> None:
    path = tmp_path / "case.py"
    path.write_text("import torch\n" + source)
    simulated(path, **options)


@pytest.mark.adr("0077-D6")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_control_flow_computes_and_differentiates_as_in_python(tmp_path: Path, case) -> None:
    flow, plain = case
    run(
        tmp_path,
        f"""
import torch._higher_order_ops as hops
from torch._higher_order_ops.while_loop import while_loop
torch.manual_seed(0)
host = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
there = [each.detach().cuda().requires_grad_() for each in host]
expected = (lambda x, y: {plain})(*host)
found = (lambda x, y: {flow})(*there)
assert found.is_cuda
torch.testing.assert_close(found.cpu(), expected)
for given, made in ((host, expected), (there, found)):
    torch.autograd.backward(made.square().sum())
for mine, own in zip(there, host, strict=True):
    if own.grad is None:
        assert mine.grad is None or not mine.grad.any()
    else:
        torch.testing.assert_close(mine.grad.cpu(), own.grad)
""",
    )


@pytest.mark.adr("0077-D6")
def test_wrong_use_of_control_flow_is_pytorchs_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="single-element tensor"):
        run(tmp_path, "x = torch.ones(2).cuda(); torch.cond(x, torch.sin, torch.cos, (x,))")


def test_compiled_autograd_is_left_out_with_the_warning_of_the_compiler(
    tmp_path: Path,
) -> None:
    source = """
layer = torch.nn.Linear(3, 3).cuda()
set_compiler = torch._C._dynamo.compiled_autograd.set_autograd_compiler
assert set_compiler(lambda: None, False) == (None, False)
layer(torch.ones(2, 3, device="cuda")).sum().backward()
assert layer.weight.grad.tolist() == [[2.0] * 3] * 3
"""
    with warnings.catch_warnings(record=True) as caught:
        run(tmp_path, source)
    assert any("torch.compile compiles nothing" in str(each.message) for each in caught)


@pytest.mark.parametrize("before", ["", "import torch._dynamo.eval_frame"])
def test_asking_what_would_be_compiled_is_refused_by_name(tmp_path: Path, before: str) -> None:
    with pytest.raises(NotImplementedError, match=r"torch\._dynamo\.explain: nothing is compiled"):
        run(tmp_path, f"{before}\ntorch._dynamo.explain(torch.sin)(torch.ones(2).cuda())")
