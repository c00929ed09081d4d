"""Ranks that use several devices each: copies between them, their gradients, DDP over them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

MOVED = {
    "device to device": ("cuda:0", "cuda:1"),
    "host to device": ("cpu", "cuda:1"),
    "device to host": ("cuda:1", "cpu"),
}


@pytest.fixture
def run(tmp_path: Path):
    def run(source: str, **options):
        path = tmp_path / "case.py"
        path.write_text("import torch\nimport torch.distributed as dist\n" + source)
        return simulated(path, **options)

    return run


@pytest.mark.adr("0096-D1")
@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("ways", MOVED.values(), ids=MOVED)
def test_the_gradient_of_a_copy_is_where_the_copied_tensor_is(run, ways, data: bool) -> None:
    run(
        f"""
source, target = map(torch.device, {ways})
x = torch.arange(3.0, device=source, requires_grad=True)
w = torch.arange(9.0, device=target).view(3, 3).requires_grad_()
for moved in (
    x.to(target), x.to(device=target, dtype=torch.float64).float(), x.to(w),
    torch.zeros(3, device=target).copy_(x),
):
    assert moved.device == target
    x.grad = w.grad = None
    ((moved @ w).to(source) * x).sum().backward()
    assert x.grad.device == source and w.grad.device == target
    if {data}:
        # The gradient of x w x and of w, by hand.
        whole = torch.arange(9.0).view(3, 3)
        mine = torch.arange(3.0)
        torch.testing.assert_close(x.grad.cpu(), (whole + whole.T) @ mine)
        torch.testing.assert_close(w.grad.cpu(), torch.outer(mine, mine))
""",
        data=data,
    )


def test_second_derivatives_cross_devices(run) -> None:
    run(
        """
x = torch.linspace(0.5, 1.5, 4, dtype=torch.float64, device="cuda:0", requires_grad=True)
there = lambda x: (x.to("cuda:1") ** 3).cpu()
assert torch.autograd.gradcheck(there, x) and torch.autograd.gradgradcheck(there, x)
found, = torch.autograd.grad(there(x).sum(), x, create_graph=True)
twice, = torch.autograd.grad(found.sum(), x)
assert found.device == twice.device == x.device
torch.testing.assert_close(twice.cpu(), 6 * torch.linspace(0.5, 1.5, 4, dtype=torch.float64))
"""
    )


@pytest.mark.adr("0096-D1")
def test_a_model_over_two_devices_trains_as_on_the_host(run) -> None:
    run(
        """
import copy
class Halves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
    def forward(self, x):
        x = self.first(x.to(self.first.weight.device)).relu()
        return self.second(x.to(self.second.weight.device))
torch.manual_seed(0)
whole = Halves()
split = copy.deepcopy(whole)
split.first.to("cuda:0")
split.second.to("cuda:1")
data = torch.randn(6, 8)
for model in (whole, split):
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        # In two batches, one behind the other.
        torch.cat([model(part) for part in data.split(3)]).square().mean().backward()
        optimizer.step()
for expected, found in zip(whole.parameters(), split.parameters(), strict=True):
    assert found.grad.device == found.device
    torch.testing.assert_close(found.cpu(), expected)
"""
    )


@pytest.mark.adr("0096-D2")
@pytest.mark.adr("0096-D3")
@pytest.mark.parametrize("views", [False, True])
def test_ddp_over_two_devices_of_each_rank_averages_as_one_process_would(run, views) -> None:
    context = run(
        f"""
import copy
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
class Ends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(8, 8) for _ in range(3))
    def forward(self, x):
        for layer in (self.a, self.b, self.c):
            x = layer(x.to(layer.weight.device)).tanh()
        return x
torch.manual_seed(0)
whole = Ends()
model = copy.deepcopy(whole)
torch.nn.init.zeros_(model.a.weight) if rank else None
for layer, device in ((model.a, 2 * rank), (model.b, 2 * rank + 1), (model.c, 2 * rank)):
    layer.to(device)
model = DDP(model, bucket_cap_mb=3e-4, gradient_as_bucket_view={views})
batches = torch.randn(3, size, 5, 8)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (whole, model)]
for step in range(3):
    model(batches[step, rank]).square().mean().backward()
    whole(batches[step].flatten(0, 1)).square().mean().backward()
    for expected, found in zip(whole.parameters(), model.parameters(), strict=True):
        assert found.grad.device == found.device
        torch.testing.assert_close(found.grad.cpu(), expected.grad)
    for each in optimizers:
        each.step()
        each.zero_grad()
""",
        nprocs=2,
    )
    reduced = [each for each in context.op_log.instances if each.template.name == "all_reduce"]
    assert {each.sips for each in reduced} == {(0, 2), (1, 3)}


@pytest.mark.adr("0096-D2")
def test_a_collective_is_on_the_device_of_its_tensors(run) -> None:
    run(
        """
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(0)
x = torch.full((4,), rank + 1.0, device=f"cuda:{3 - rank}")
dist.all_reduce(x)
assert x.tolist() == [3.0] * 4
work = dist.all_reduce(x, async_op=True)
work.wait()
assert (2 * x).tolist() == [12.0] * 4
""",
        nprocs=2,
    )


@pytest.mark.adr("0096-D2")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            'dist.all_reduce(torch.ones(4, device="cuda:0"))',
            "rank 0 and of rank 1 both lie on cuda:0",
        ),
        (
            'dist.all_gather([torch.ones(4, device=f"cuda:{each}") for each in range(2)], '
            'torch.ones(4, device="cuda:0"))',
            "of cuda:0 and of cuda:1; one collective takes those of one device",
        ),
    ],
)
def test_ranks_that_share_a_device_or_mix_devices_are_refused(run, source, words) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        run("dist.init_process_group('nccl')\n" + source, nprocs=2)
    for error in caught.value.exceptions:
        assert isinstance(error, UsageError)
        assert words in str(error)


def test_the_report_names_the_devices_of_a_rank_that_uses_several(run) -> None:
    context = run("x, y = (torch.ones(2**20, device=f'cuda:{each}') for each in range(2))")
    lines = [line.partition(" in tensors")[0] for ask in context.remarks for line in ask()]
    assert lines == [f"peak memory of rank 0 on cuda:{each}: 4.00 MiB" for each in range(2)]
