"""Control flow as operations, against plain Python on the host.

python control_flow.py CASE [ARGUMENTS]
"""

import importlib
import sys

import torch
import torch._higher_order_ops as hops
from torch._higher_order_ops.while_loop import while_loop


def counted_loop(x, y):
    start = torch.zeros((), dtype=torch.int64, device=x.device), x
    return while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, a * y), start)[1]


def scan(x, y):
    result = hops.scan(lambda c, a: (c + a * a, c * a), y[0], x, reverse=True)
    return torch.cat([item.flatten() for item in result])


def scan_of_python(x, y):
    steps = [x[i] * (y[0] + x[i + 1 :].square().sum(0)) for i in range(4)]
    return torch.cat([y[0] + x.square().sum(0), torch.stack(steps).flatten()])


FLOWS = {
    "cond": (
        lambda x, y: torch.cond(
            x.sum() > y.sum(), lambda a, b: a * b, lambda a, b: a.sin() - b, (x, y)
        ),
        lambda x, y: x.sin() - y if x.sum() <= y.sum() else x * y,
    ),
    "a chosen branch": (
        lambda x, y: torch.cond(x.sum() > -100, lambda a, b: a * b, lambda a, b: a - b, (x, y)),
        lambda x, y: x * y,
    ),
    "while_loop": (counted_loop, lambda x, y: x * y * y * y * y),
    "map": (lambda x, y: hops.map(lambda a, b: a * b.sum(), x, y), lambda x, y: x * y.sum()),
    "scan": (scan, scan_of_python),
    "associative_scan": (
        lambda x, y: hops.associative_scan(torch.add, x, 0, combine_mode="generic"),
        lambda x, y: x.cumsum(0),
    ),
    "foreach_map": (
        lambda x, y: torch.stack(hops.foreach_map(torch.mul, [x, y], [y, y])),
        lambda x, y: torch.stack([x * y, y * y]),
    ),
}


def flow_computes_and_differentiates_as_in_python(name: str) -> None:
    flow, plain = FLOWS[name]
    torch.manual_seed(0)
    host = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    there = [item.detach().cuda().requires_grad_() for item in host]
    expected = plain(*host)
    result = flow(*there)
    assert result.is_cuda
    torch.testing.assert_close(result.cpu(), expected)
    for built in (expected, result):
        torch.autograd.backward(built.square().sum())
    for mine, own in zip(there, host, strict=True):
        if own.grad is None:
            assert mine.grad is None or not mine.grad.any()
        else:
            torch.testing.assert_close(mine.grad.cpu(), own.grad)


def scan_of_elements() -> None:
    x = torch.randn(6, 5)
    result = hops.associative_scan(torch.add, x.cuda(), 0)[0]
    torch.testing.assert_close(result.cpu(), x.cumsum(0))


def random_numbers_with_their_state() -> None:
    """What graphs call in which a dropout is computed again."""
    x = torch.ones(64, device="cuda")
    saved = torch.ops.higher_order.run_and_save_rng_state
    again = torch.ops.higher_order.run_with_rng_state
    state, result = saved(torch.ops.aten.rand_like.default, x)
    torch.rand(5, device="cuda")
    assert torch.equal(again(state, torch.ops.aten.rand_like.default, x), result)
    assert not torch.equal(torch.rand_like(x), result)


def a_condition_of_two_elements() -> None:
    x = torch.ones(2).cuda()
    torch.cond(x, torch.sin, torch.cos, (x,))


def compiled_autograd() -> None:
    layer = torch.nn.Linear(3, 3).cuda()
    set_compiler = torch._C._dynamo.compiled_autograd.set_autograd_compiler
    assert set_compiler(lambda: None, False) == (None, False)
    layer(torch.ones(2, 3, device="cuda")).sum().backward()
    assert layer.weight.grad.tolist() == [[2.0] * 3] * 3


def graphs_that_python_runs() -> None:
    """What back ends for debugging call, which leave control flow as operators in their graphs."""
    region = torch.compiler.nested_compile_region(lambda x: x.sin() + 1)
    flows = {
        "region": (lambda x, y: region(x) * y, lambda x, y: (x.sin() + 1) * y),
        **{name: FLOWS[name] for name in ("cond", "while_loop", "scan")},
    }
    for name, (flow, plain) in flows.items():
        host = [torch.rand(4, 4, requires_grad=True) for _ in range(2)]
        there = [item.detach().cuda().requires_grad_() for item in host]
        expected = plain(*host)
        for back_end in ("eager", "aot_eager"):
            torch._dynamo.reset()
            result = torch.compile(flow, backend=back_end, fullgraph=True)(*there)
            torch.testing.assert_close(result.cpu(), expected, msg=f"{name} by {back_end}")
        if name != "while_loop":
            gradients = [
                torch.autograd.grad(y.sum(), x) for y, x in ((expected, host), (result, there))
            ]
            torch.testing.assert_close([item.cpu() for item in gradients[1]], list(gradients[0]))


def explain(imports: str) -> None:
    if imports == "before":
        importlib.import_module("torch._dynamo.eval_frame")
    torch._dynamo.explain(torch.sin)(torch.ones(2).cuda())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
