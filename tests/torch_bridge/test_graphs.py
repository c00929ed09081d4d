"""CUDA graphs: a capture runs nothing, a replay computes all of it anew at one launch."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.report import write_trace  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.base.refusals import CaptureError  # noqa: E402
from kernbench.torch_bridge.placement.moves import UNDER_WAY  # noqa: E402
from tests.torch_bridge.running import assert_same_bits, simulated  # noqa: E402

START = """
import torch
import torch.nn as nn
from torch.nn import functional as F
torch.manual_seed(0)
x = torch.randn(8, 16, device="cuda")
w = torch.randn(16, 16, device="cuda")
g = torch.cuda.CUDAGraph()
"""


@pytest.fixture
def run(tmp_path: Path):
    def run(source: str, **options) -> RuntimeContext:
        path = tmp_path / "case.py"
        path.write_text(START + source)
        return simulated(path, **options)

    return run


@pytest.mark.adr("0094-D1")
def test_results_hold_nothing_until_the_first_replay_and_then_those_of_the_inputs(run) -> None:
    run(
        "before = w.clone()\n"
        "with torch.cuda.graph(g):\n"
        "    assert torch.cuda.is_current_stream_capturing()\n"
        "    y = F.relu(x @ w).sum(0)\n"
        "    w.mul_(2)\n"
        "    places = y.argsort()\n"
        "assert not torch.cuda.is_current_stream_capturing()\n"
        "assert y.isnan().all() and not places.any() and torch.equal(w, before)\n"
        "for step in range(3):\n"
        "    fresh = torch.randn(8, 16)\n"
        "    x.copy_(fresh)\n"
        "    expected = F.relu(fresh @ w.cpu()).sum(0)\n"
        "    g.replay()\n"
        "    assert torch.equal(y.cpu(), expected)\n"
        "    assert torch.equal(places.cpu(), expected.argsort())\n"
        "    assert torch.equal(w, before * 2 ** (step + 1))\n"
    )


TRAINING = """
def model_and_optimizer():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4)).to("cuda")
    return model, MAKE(model.parameters())
inputs = [torch.randn(8, 16, device="cuda") for _ in range(5)]
targets = [torch.randint(4, (8,), device="cuda") for _ in range(5)]
def step(model, optimizer, x, target):
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    return loss
model, optimizer = model_and_optimizer()
expected = [step(model, optimizer, *each).item() for each in [(inputs[0], targets[0])] * 3
            + list(zip(inputs, targets))]
reference = {name: each.clone() for name, each in model.state_dict().items()}

model, optimizer = model_and_optimizer()
static_x, static_target = inputs[0].clone(), targets[0].clone()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    found = [step(model, optimizer, static_x, static_target).item() for _ in range(3)]
torch.cuda.current_stream().wait_stream(side)
with torch.cuda.graph(g):
    static_loss = step(model, optimizer, static_x, static_target)
for x, target in zip(inputs, targets):
    static_x.copy_(x)
    static_target.copy_(target)
    g.replay()
    found.append(static_loss.item())
assert found == expected, (found, expected)
for name, value in model.state_dict().items():
    assert torch.equal(value, reference[name]), name
"""


@pytest.mark.adr("0094-D1")
@pytest.mark.parametrize(
    "optimizer",
    [
        "lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)",
        "lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=True)",
        "lambda p: torch.optim.Adam(p, lr=1e-2, capturable=True, fused=True)",
    ],
)
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable")
def test_a_training_step_that_is_captured_whole_trains_as_the_eager_one(run, optimizer) -> None:
    run(TRAINING.replace("MAKE", f"({optimizer})"))


@pytest.mark.adr("0094-D1")
def test_the_host_and_other_streams_work_on_during_a_capture(run) -> None:
    run(
        "count, side = torch.zeros(3), torch.cuda.Stream()\n"
        "with torch.cuda.graph(g):\n"
        "    y = x + 1\n"
        "    count.add_(1)\n"
        "    with torch.cuda.stream(side):\n"
        "        assert not torch.cuda.is_current_stream_capturing()\n"
        "        w.zero_(); torch.cuda.current_stream().synchronize(); total = w.sum().item()\n"
        "assert total == 0 and count.tolist() == [1, 1, 1] and not w.any()\n"
        "w.fill_(5); g.replay()\n"
        "assert count.tolist() == [1, 1, 1] and (w == 5).all() and torch.equal(y, x + 1)\n"
    )


@pytest.mark.adr("0094-D2")
@pytest.mark.parametrize("data", [True, False])
def test_a_replay_takes_one_launch_and_the_time_of_its_operations(run, data: bool) -> None:
    count = 20
    context = run(
        "with torch.cuda.graph(g):\n"
        f"    for _ in range({count}): x.add_(1)\n"
        "torch.cuda.synchronize()\n"
        "g.replay()\n"
        "torch.cuda.synchronize()\n",
        data=data,
    )
    adds = [each for each in context.op_log.instances if each.template.name == "aten.add_"]
    assert len(adds) == count
    (launch,) = (each for each in context.op_log.host_spans if each.label == "graph 1")
    assert launch.kind == "launch"
    assert launch.end_ps - launch.start_ps == context.machine.sip.host_launch_ps
    assert adds[0].starts_ps[0] == launch.end_ps
    total_ps = sum(each.template.duration_ps for each in adds)
    assert adds[-1].ends_ps[0] - launch.end_ps == total_ps
    # Each is there when the one before ends.
    assert all(one.ends_ps == other.starts_ps for one, other in pairwise(adds))


@pytest.mark.adr("0094-D2")
def test_branches_of_a_graph_wait_for_each_other_as_captured(run) -> None:
    context = run(
        "host = torch.zeros(1 << 20)\n"
        "big = torch.zeros(1 << 20, device='cuda')\n"
        "side, end = torch.cuda.Stream(), torch.cuda.Event()\n"
        "with torch.cuda.graph(g):\n"
        "    here = torch.cuda.current_stream()\n"
        "    side.wait_stream(here)\n"
        "    with torch.cuda.stream(side):\n"
        "        assert side.is_capturing()\n"
        "        big.copy_(host, non_blocking=True)\n"
        "    y = x @ w\n"
        "    here.wait_stream(side)\n"
        "    z = big + 1\n"
        "assert not side.is_capturing()\n"
        "host.fill_(7)\n"
        "g.replay()\n"
        "assert (z == 8).all() and torch.equal(y, x @ w)\n"
    )
    by_name = {each.template.name: each for each in reversed(context.op_log.instances)}
    copy, product, add = (by_name[each] for each in ("copy_from_host", "aten.mm", "aten.add"))
    assert copy.stream != product.stream == add.stream
    assert copy.starts_ps[0] < product.ends_ps[0] < copy.ends_ps[0] == add.starts_ps[0]


@pytest.mark.adr("0094-D3")
@pytest.mark.parametrize(
    ("inside", "named"),
    {
        "x.sum().item()": "aten._local_scalar_dense",
        "bool(x.sum() > 0)": "aten.",
        "x.cpu()": "aten._to_copy between host and device",
        "torch.zeros(3).to('cuda')": "aten._to_copy between host and device",
        "x.copy_(torch.zeros(8, 16))": "aten.copy_ between host and device",
        "x[torch.tensor([1, 2])]": "aten.index with a tensor of the host",
        "x.nonzero()": "aten.nonzero",
        "torch.cuda.synchronize()": "torch.cuda.synchronize",
        "torch.cuda.current_stream().synchronize()": "torch.cuda.Stream.synchronize",
        "torch.cuda.current_stream().record_event().synchronize()": "torch.cuda.Event.synchronize",
        "torch.cuda.CUDAGraph().capture_begin()": "another capture",
    }.items(),
)
def test_what_the_host_would_wait_for_is_refused_in_a_capture(run, inside, named) -> None:
    with pytest.raises(CaptureError) as caught:
        run(f"with torch.cuda.graph(g):\n    y = x + 1\n    {inside}\n")
    assert named in str(caught.value)


@pytest.mark.adr("0094-D3")
def test_a_capture_that_has_failed_leaves_the_program_as_it_was(run) -> None:
    run(
        "before = w.clone()\n"
        "try:\n"
        "    with torch.cuda.graph(g):\n"
        "        w.add_(1)\n"
        "        w.sum().item()\n"
        "except RuntimeError as error: assert 'when stream is capturing' in str(error)\n"
        "else: assert False\n"
        "assert torch.equal(w, before) and not torch.cuda.is_current_stream_capturing()\n"
        "try: g.replay()\n"
        "except RuntimeError as error: assert 'without a preceding' in str(error)\n"
        "else: assert False\n"
        "with torch.cuda.graph(g): w.add_(1)\n"
        "g.replay()\n"
        "assert torch.equal(w, before + 1)\n"
    )


@pytest.mark.adr("0094-D3")
@pytest.mark.parametrize(
    ("source", "named"),
    {
        "g.replay()": "without a preceding successful capture",
        "g.pool()": "without a preceding successful capture",
        "g.capture_end()": "no capture of this graph",
        "g.capture_begin()": "non-default stream",
        "torch.cuda.graph(None)": "takes a torch.cuda.CUDAGraph, but got None",
        "with torch.cuda.graph(g, capture_error_mode='none'): pass": "must be one of global",
        "with torch.cuda.graph(g, pool=(9, 9)): pass": "no pool of graphs",
        "with torch.cuda.graph(g): x.add_(1)\nwith torch.cuda.graph(g): pass": "already owns",
        "side = torch.cuda.Stream()\nwith torch.cuda.graph(g):\n"
        "    side.wait_stream(torch.cuda.current_stream())\n"
        "    with torch.cuda.stream(side): x.add_(1)": "call wait_stream first",
        "side = torch.cuda.Stream()\nwith torch.cuda.stream(side): x.add_(1)\n"
        "with torch.cuda.graph(g):\n"
        "    torch.cuda.current_stream().wait_stream(side)": "uncaptured work",
        "with torch.cuda.graph(g): event = torch.cuda.current_stream().record_event()\n"
        "event.synchronize()": "recorded in the capture",
    }.items(),
)
def test_wrong_use_of_a_graph_is_a_runtime_error_that_says_what_to_do(run, source, named) -> None:
    with pytest.raises(RuntimeError, match=named):
        run(source)


def test_an_empty_graph_is_a_warning(run) -> None:
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        run("with torch.cuda.graph(g): pass\ng.replay()")


@pytest.mark.adr("0094-D4")
def test_random_numbers_are_drawn_anew_at_each_replay_as_if_eager(run) -> None:
    run(
        "own = torch.Generator(device='cuda').manual_seed(5)\n"
        "def draw():\n"
        "    mine = x.clone().normal_(generator=own)\n"
        "    return F.dropout(x, 0.5), torch.randn(3, device='cuda'), mine\n"
        "torch.cuda.manual_seed(3)\n"
        "expected = [draw() for _ in range(3)]\n"
        "own.manual_seed(5); torch.cuda.manual_seed(3)\n"
        "with torch.cuda.graph(g): found = draw()\n"
        "for each in expected:\n"
        "    g.replay()\n"
        "    assert all(map(torch.equal, found, each))\n"
    )


@pytest.mark.adr("0094-D4")
@pytest.mark.parametrize("data", [True, False])
def test_generators_share_states_inside_of_a_capture_and_outside(
    tmp_path: Path, data: bool
) -> None:
    simulated("generator_states.py", tmp_path, data=data)
    expected, found = (torch.load(tmp_path / f"{name}.pt") for name in ("expected", "found"))
    assert [[each.shape for each in pair] for pair in found] == [[(5,), (6,)]] * 3
    if data:
        # Of a run without data nobody knows them; that they were drawn shows in the offsets.
        assert assert_same_bits(found, [list(pair) for pair in expected]) == 6


@pytest.mark.parametrize(
    "call",
    [
        "torch.cuda.get_rng_state()",
        "torch.cuda.default_generators[0].get_state()",
        "torch.cuda.manual_seed(11)",
    ],
)
@pytest.mark.adr("0094-D4")
def test_a_state_that_depends_on_replays_is_refused_in_a_capture(run, call: str) -> None:
    with pytest.raises(CaptureError, match="random numbers"):
        run(f"with torch.cuda.graph(g): {call}")


@pytest.mark.parametrize(
    ("call", "named"),
    {
        "own.graphsafe_set_state(torch.Generator())": "takes a generator of a device",
        "own.set_offset(3)": "a multiple of 4",
        "own.set_state(torch.zeros(3, dtype=torch.uint8))": "a tensor of 16 bytes",
        "own.manual_seed(1 << 64)": "a seed has 64 bits",
    }.items(),
)
def test_a_wrong_state_of_a_generator_is_refused(run, call: str, named: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=named):
        run(f"own = torch.Generator(device='cuda')\n{call}")


@pytest.mark.adr("0094-D5")
def test_memory_of_a_capture_is_the_graphs_until_it_is_gone(run) -> None:
    run(
        "mib = 1 << 20\n"
        "big = torch.zeros(4 * mib, dtype=torch.int8, device='cuda')\n"
        "before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()\n"
        "with torch.cuda.graph(g):\n"
        "    a = big + 1\n"  # Dies, and its memory is that of the third.
        "    b = a + 1\n"
        "    del a\n"
        "    c = b + 1\n"
        "    del b\n"
        "    d = c + 1\n"
        "    del c\n"
        "assert torch.cuda.memory_allocated() == before[0] + 4 * mib\n"
        "assert torch.cuda.memory_reserved() == before[1] + 20 * mib\n"
        "torch.cuda.empty_cache()\n"
        "assert torch.cuda.memory_reserved() == before[1] + 20 * mib\n"
        "big.fill_(3); g.replay()\n"
        "assert (d == 7).all()\n"
        "other = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(other, pool=g.pool()):\n"
        "    e = big + 1\n"
        "assert torch.cuda.memory_reserved() == before[1] + 20 * mib\n"
        "assert other.pool() == g.pool()\n"
        "del d, e\n"
        "g.reset(); del other\n"
        "torch.cuda.empty_cache()\n"
        "assert torch.cuda.memory_allocated() == before[0]\n"
        "assert torch.cuda.memory_reserved() == before[1]\n"
    )


KERNEL = """
import triton, triton.language as tl
@triton.jit
def scale(x, y, factor, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, factor * tl.load(x + at, mask=at < count), mask=at < count)
def scaled(x, factor):
    y = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 64),)](x, y, factor, x.numel(), BLOCK=64)
    return y
before = w.clone()
with torch.cuda.graph(g):
    y = scaled(scaled(x, 2.0) + 1, 3.0)
    scale[(4,)](w, w, 2.0, w.numel(), BLOCK=64)
assert y.isnan().all() and torch.equal(w, before)
for _ in range(2):
    x.normal_()
    g.replay()
    assert torch.equal(y, (x * 2 + 1) * 3)
assert torch.equal(w, before * 4)
h, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(h):
    z = y + 1
    with torch.cuda.stream(side):
        scale[(4,)](w, w, 0.25, w.numel(), BLOCK=64)
assert torch.equal(w, before)
h.replay()
assert torch.equal(w, before) and torch.equal(z, y + 1)
"""


@pytest.mark.adr("0094-D1")
def test_triton_kernels_are_captured_and_replayed(run) -> None:
    context = run(KERNEL)
    assert sum(each.template.name == "scale" for each in context.op_log.instances) == 6 + 1


@pytest.mark.adr("0094-D3")
def test_a_capture_that_nobody_ends_ends_with_the_run(run) -> None:
    run("torch.cuda.set_stream(torch.cuda.Stream()); g.capture_begin(); x.add_(1)")
    assert not UNDER_WAY
    run("x.add_(1)")


GRAPHED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)
    def forward(self, x):
        return self.b(F.gelu(self.a(x)))
net = Net().to("cuda")
copy = Net().to("cuda"); copy.load_state_dict(net.state_dict())
sample = torch.randn(8, 16, device="cuda", requires_grad=True)
graphed = torch.cuda.make_graphed_callables(net, (sample,))
assert graphed is net
for _ in range(3):
    fresh = torch.randn(8, 16, device="cuda")
    losses = []
    for each in (net, copy):
        each.zero_grad()
        given = fresh.clone().requires_grad_()
        loss = each(given).square().mean()
        loss.backward()
        losses.append((loss.detach(), given.grad, *(p.grad for p in each.parameters())))
    assert all(map(torch.equal, *losses))
net.eval()
assert torch.equal(net(fresh), copy(fresh))
"""


@pytest.mark.adr("0094-D1")
@pytest.mark.parametrize("data", [True, False])
def test_graphed_callables_compute_what_they_did_forward_and_backward(run, data: bool) -> None:
    context = run(GRAPHED, data=data)
    launches = [each.label for each in context.op_log.host_spans if each.kind == "launch"]
    assert [launches.count(f"graph {number}") for number in (1, 2)] == [3, 3]
    # Inputs and gradients of results come to where the graphs read them; the state, to the copy.
    assert launches.count("aten.copy_") == 3 + 3 + 4


def test_profiles_show_the_operations_of_a_graph_under_its_launch(run) -> None:
    run(
        "with torch.cuda.graph(g): y = (x @ w).relu()\n"
        "with torch.profiler.profile() as prof:\n"
        "    g.replay(); x.relu_()\n"
        "events = {each.name: each for each in prof.events() if each.device_type.name == 'CPU'}\n"
        "assert [k.name for k in events['graph 1'].kernels] == ['aten.mm', 'aten.relu']\n"
        "assert [k.name for k in events['aten::relu_'].kernels] == ['aten.relu_']\n"
    )


def test_what_a_graph_holds_can_be_written_to_a_file(run, tmp_path: Path) -> None:
    said = tmp_path / "graph.dot"
    run(
        "g.enable_debug_mode()\n"
        "with torch.cuda.graph(g): y = (x @ w).relu()\n"
        f"g.debug_dump({str(said)!r})\n"
    )
    assert '0 [label="aten.mm"]' in said.read_text()
    assert "0 -> 1" in said.read_text()


def test_a_trace_draws_the_arrow_of_a_graphs_launch_to_its_first_operation(
    run, tmp_path: Path
) -> None:
    context = run(
        "y = x * 2\n"
        "with torch.cuda.graph(g): z = (x * 2).relu()\n"
        "torch.cuda.synchronize(); g.replay(); x * 2; torch.cuda.synchronize()\n"
    )
    path = tmp_path / "trace.json"
    write_trace(context.op_log, context.machine, path)
    events = json.loads(path.read_text())["traceEvents"]
    ends = {each["id"]: each["ts"] for each in events if each["ph"] == "f"}
    starts = {each["id"]: each["ts"] for each in events if each["ph"] == "s"}
    arrows = {starts[each]: ends[each] for each in ends}
    instances = context.op_log.instances
    muls = [each for each in instances if each.template.name == "aten.mul"]
    for span in context.op_log.host_spans:
        if span.label == "graph 1":
            assert arrows[span.start_ps / 1e6] == muls[1].starts_ps[0] / 1e6
        elif span.label == "aten.mul" and span.kind == "launch":
            here = muls[0] if span.start_ps < muls[0].starts_ps[0] else muls[2]
            assert arrows[span.start_ps / 1e6] == here.starts_ps[0] / 1e6
