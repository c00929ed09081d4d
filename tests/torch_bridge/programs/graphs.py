"""Captures of CUDA graphs and their replays; each function asserts what they compute or refuse.

python graphs.py CASE [ARGUMENTS]
"""

import sys
from functools import partial

import pytest
import torch
import torch.nn as nn
import triton
import triton.language as tl
from torch.nn import functional as F

from kernbench.torch_bridge.base.refusals import CaptureError

torch.manual_seed(0)
x = torch.randn(8, 16, device="cuda")
w = torch.randn(16, 16, device="cuda")
g = torch.cuda.CUDAGraph()


def results_hold_nothing_until_the_first_replay_and_then_those_of_the_inputs() -> None:
    before = w.clone()
    with torch.cuda.graph(g):
        assert torch.cuda.is_current_stream_capturing()
        y = F.relu(x @ w).sum(0)
        w.mul_(2)
        places = y.argsort()
    assert not torch.cuda.is_current_stream_capturing()
    assert y.isnan().all()
    assert not places.any()
    assert torch.equal(w, before)
    for step in range(3):
        fresh = torch.randn(8, 16)
        x.copy_(fresh)
        expected = F.relu(fresh @ w.cpu()).sum(0)
        g.replay()
        assert torch.equal(y.cpu(), expected)
        assert torch.equal(places.cpu(), expected.argsort())
        assert torch.equal(w, before * 2 ** (step + 1))


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=1e-2, capturable=True),
    "fused Adam": partial(torch.optim.Adam, lr=1e-2, capturable=True, fused=True),
}


def a_training_step_that_is_captured_whole_trains_as_the_eager_one(kind: str) -> None:
    def model_and_optimizer():
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4)
        ).to("cuda")
        return model, OPTIMIZERS[kind](model.parameters())

    inputs = [torch.randn(8, 16, device="cuda") for _ in range(5)]
    targets = [torch.randint(4, (8,), device="cuda") for _ in range(5)]

    def step(model, optimizer, x, target):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    model, optimizer = model_and_optimizer()
    expected = [
        step(model, optimizer, *item).item()
        for item in [(inputs[0], targets[0])] * 3 + list(zip(inputs, targets, strict=True))
    ]
    reference = {name: value.clone() for name, value in model.state_dict().items()}

    model, optimizer = model_and_optimizer()
    static_x, static_target = inputs[0].clone(), targets[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = [step(model, optimizer, static_x, static_target).item() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(g):
        static_loss = step(model, optimizer, static_x, static_target)
    for x, target in zip(inputs, targets, strict=True):
        static_x.copy_(x)
        static_target.copy_(target)
        g.replay()
        result.append(static_loss.item())
    assert result == expected, (result, expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, reference[name]), name


def the_host_and_other_streams_work_on_during_a_capture() -> None:
    count, side = torch.zeros(3), torch.cuda.Stream()
    with torch.cuda.graph(g):
        y = x + 1
        count.add_(1)
        with torch.cuda.stream(side):
            assert not torch.cuda.is_current_stream_capturing()
            w.zero_()
            torch.cuda.current_stream().synchronize()
            total = w.sum().item()
    assert total == 0
    assert count.tolist() == [1, 1, 1]
    assert not w.any()
    w.fill_(5)
    g.replay()
    assert count.tolist() == [1, 1, 1]
    assert (w == 5).all()
    assert torch.equal(y, x + 1)


def a_replay_takes_one_launch_and_the_time_of_its_operations(count: str) -> None:
    with torch.cuda.graph(g):
        for _ in range(int(count)):
            x.add_(1)
    torch.cuda.synchronize()
    g.replay()
    torch.cuda.synchronize()


def branches_of_a_graph_wait_for_each_other_as_captured() -> None:
    host = torch.zeros(1 << 20)
    big = torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.graph(g):
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            assert side.is_capturing()
            big.copy_(host, non_blocking=True)
        y = x @ w
        here.wait_stream(side)
        z = big + 1
    assert not side.is_capturing()
    host.fill_(7)
    g.replay()
    assert (z == 8).all()
    assert torch.equal(y, x @ w)


def capture_with(call):
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
        call()


def what_the_host_would_wait_for_is_refused_in_a_capture() -> None:
    for inside, named in (
        (lambda: x.sum().item(), "aten._local_scalar_dense"),
        (lambda: bool(x.sum() > 0), "aten."),
        (lambda: x.cpu(), "aten._to_copy between host and device"),
        (lambda: torch.zeros(3).to("cuda"), "aten._to_copy between host and device"),
        (lambda: x.copy_(torch.zeros(8, 16)), "aten.copy_ between host and device"),
        (lambda: x[torch.tensor([1, 2])], "aten.index with a host tensor"),
        (lambda: x.nonzero(), "aten.nonzero"),
        (torch.cuda.synchronize, "torch.cuda.synchronize"),
        (lambda: torch.cuda.current_stream().synchronize(), "torch.cuda.Stream.synchronize"),
        (
            lambda: torch.cuda.current_stream().record_event().synchronize(),
            "torch.cuda.Event.synchronize",
        ),
        (lambda: torch.cuda.CUDAGraph().capture_begin(), "another capture"),
    ):
        before = x.clone()
        with pytest.raises(CaptureError) as raised:
            capture_with(inside)
        assert named in str(raised.value), named
        assert torch.equal(x, before)


def a_capture_that_has_failed_leaves_the_program_as_it_was() -> None:
    before = w.clone()

    def fail():
        with torch.cuda.graph(g):
            w.add_(1)
            w.sum().item()

    with pytest.raises(RuntimeError, match="when stream is capturing"):
        fail()
    assert torch.equal(w, before)
    assert not torch.cuda.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="without a preceding"):
        g.replay()
    with torch.cuda.graph(g):
        w.add_(1)
    g.replay()
    assert torch.equal(w, before + 1)


def capture(graph, **options):
    with torch.cuda.graph(graph, **options):
        x.add_(1)


def capture_twice(graph):
    capture(graph)
    capture(graph)


def stay_on_another_stream(graph):
    side = torch.cuda.Stream()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)


def wait_for_uncaptured_work(graph):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.add_(1)
    with torch.cuda.graph(graph):
        torch.cuda.current_stream().wait_stream(side)


def wait_for_an_event_of_a_capture(graph):
    with torch.cuda.graph(graph):
        event = torch.cuda.current_stream().record_event()
    event.synchronize()


def wrong_use_of_a_graph_is_a_runtime_error_that_says_what_to_do() -> None:
    for mistake, named in (
        (torch.cuda.CUDAGraph.replay, "without a preceding successful capture"),
        (torch.cuda.CUDAGraph.pool, "without a preceding successful capture"),
        (torch.cuda.CUDAGraph.capture_end, "no capture of this graph"),
        (torch.cuda.CUDAGraph.capture_begin, "non-default stream"),
        (lambda graph: torch.cuda.graph(None), "takes a torch.cuda.CUDAGraph, but got None"),
        (partial(capture, capture_error_mode="none"), "must be one of global"),
        (partial(capture, pool=(9, 9)), "not a pool of graphs"),
        (capture_twice, "already owns"),
        (stay_on_another_stream, "call wait_stream first"),
        (wait_for_uncaptured_work, "uncaptured work"),
        (wait_for_an_event_of_a_capture, "recorded in the capture"),
    ):
        with pytest.raises(RuntimeError, match=named):
            mistake(torch.cuda.CUDAGraph())
        assert not torch.cuda.is_current_stream_capturing()


def an_empty_graph_is_a_warning() -> None:
    with torch.cuda.graph(g):
        pass
    g.replay()


def random_numbers_are_drawn_anew_at_each_replay_as_if_eager() -> None:
    own = torch.Generator(device="cuda").manual_seed(5)

    def draw():
        mine = x.clone().normal_(generator=own)
        return F.dropout(x, 0.5), torch.randn(3, device="cuda"), mine

    torch.cuda.manual_seed(3)
    expected = [draw() for _ in range(3)]
    own.manual_seed(5)
    torch.cuda.manual_seed(3)
    with torch.cuda.graph(g):
        result = draw()
    for item in expected:
        g.replay()
        assert all(map(torch.equal, result, item))


def a_state_that_depends_on_replays_is_refused_in_a_capture() -> None:
    for call in (
        torch.cuda.get_rng_state,
        torch.cuda.default_generators[0].get_state,
        lambda: torch.cuda.manual_seed(11),
    ):
        with pytest.raises(CaptureError, match="random numbers"):
            capture_with(call)


def a_wrong_state_of_a_generator_is_refused() -> None:
    own = torch.Generator(device="cuda")
    for call, named in (
        (lambda: own.graphsafe_set_state(torch.Generator()), "takes a generator of a device"),
        (lambda: own.set_offset(3), "a multiple of 4"),
        (lambda: own.set_state(torch.zeros(3, dtype=torch.uint8)), "a tensor of 16 bytes"),
        (lambda: own.manual_seed(1 << 64), "a seed must fit in 64 bits"),
    ):
        with pytest.raises((RuntimeError, TypeError), match=named):
            call()


def memory_of_a_capture_is_the_graphs_until_it_is_gone() -> None:
    mib = 1 << 20
    big = torch.zeros(4 * mib, dtype=torch.int8, device="cuda")
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    with torch.cuda.graph(g):
        a = big + 1  # Dies, and its memory is that of the third.
        b = a + 1
        del a
        c = b + 1
        del b
        d = c + 1
        del c
    assert torch.cuda.memory_allocated() == before[0] + 4 * mib
    assert torch.cuda.memory_reserved() == before[1] + 20 * mib
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before[1] + 20 * mib
    big.fill_(3)
    g.replay()
    assert (d == 7).all()
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other, pool=g.pool()):
        e = big + 1
    assert torch.cuda.memory_reserved() == before[1] + 20 * mib
    assert other.pool() == g.pool()
    del d, e
    g.reset()
    del other
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before[0]
    assert torch.cuda.memory_reserved() == before[1]


def what_a_capture_restores_takes_no_memory_of_a_device() -> None:
    x = torch.zeros(1 << 20, device="cuda")
    before = torch.cuda.max_memory_allocated()
    with torch.cuda.graph(g):
        x.add_(1)
    assert torch.cuda.max_memory_allocated() == before
    assert (x == 0).all()
    g.replay()
    assert (x == 1).all()


@triton.jit
def scale(x, y, factor, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, factor * tl.load(x + at, mask=at < count), mask=at < count)


def scaled(x, factor):
    y = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 64),)](x, y, factor, x.numel(), BLOCK=64)
    return y


def triton_kernels_are_captured_and_replayed() -> None:
    before = w.clone()
    with torch.cuda.graph(g):
        y = scaled(scaled(x, 2.0) + 1, 3.0)
        scale[(4,)](w, w, 2.0, w.numel(), BLOCK=64)
    assert y.isnan().all()
    assert torch.equal(w, before)
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
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(w, before)
    h.replay()
    assert torch.equal(w, before)
    assert torch.equal(z, y + 1)


def graphed_callables_compute_what_they_did_forward_and_backward() -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)

        def forward(self, x):
            return self.b(F.gelu(self.a(x)))

    net = Net().to("cuda")
    copy = Net().to("cuda")
    copy.load_state_dict(net.state_dict())
    sample = torch.randn(8, 16, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(net, (sample,))
    assert graphed is net
    for _ in range(3):
        fresh = torch.randn(8, 16, device="cuda")
        losses = []
        for item in (net, copy):
            item.zero_grad()
            value = fresh.clone().requires_grad_()
            loss = item(value).square().mean()
            loss.backward()
            losses.append((loss.detach(), value.grad, *(p.grad for p in item.parameters())))
        assert all(map(torch.equal, *losses))
    net.eval()
    assert torch.equal(net(fresh), copy(fresh))


def profiles_show_the_operations_of_a_graph_under_its_launch() -> None:
    with torch.cuda.graph(g):
        (x @ w).relu()
    with torch.profiler.profile() as prof:
        g.replay()
        x.relu_()
    events = {event.name: event for event in prof.events() if event.device_type.name == "CPU"}
    assert [k.name for k in events["graph 1"].kernels] == ["aten.mm", "aten.relu"]
    assert [k.name for k in events["aten::relu_"].kernels] == ["aten.relu_"]


def what_a_graph_holds_can_be_written_to_a_file(path: str) -> None:
    g.enable_debug_mode()
    with torch.cuda.graph(g):
        (x @ w).relu()
    g.debug_dump(path)


def a_capture_that_nobody_ends_ends_with_the_run() -> None:
    torch.cuda.set_stream(torch.cuda.Stream())
    g.capture_begin()
    x.add_(1)


def a_trace_draws_the_arrow_of_a_graphs_launch_to_its_first_operation() -> None:
    x * 2
    with torch.cuda.graph(g):
        (x * 2).relu()
    torch.cuda.synchronize()
    g.replay()
    x * 2
    torch.cuda.synchronize()


def a_replay_waits_for_the_one_before_on_whatever_stream() -> None:
    source = torch.ones(1 << 22, device="cuda")
    targets = [torch.empty(1 << 22, pin_memory=True) for _ in range(2)]
    graphs, ends, took = (g, torch.cuda.CUDAGraph()), [], []
    for graph, target in zip(graphs, targets, strict=True):
        with torch.cuda.graph(graph):
            target.copy_(source, non_blocking=True)
    for second in graphs:
        torch.cuda.synchronize()
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        ends[0].record()
        g.replay()
        ends[1].record()
        with torch.cuda.stream(torch.cuda.Stream()):
            second.replay()
            ends[2].record()
        torch.cuda.synchronize()
        took.append([ends[0].elapsed_time(end) for end in ends[1:]])
    (alone, both), (_, beside) = took
    assert both > 1.9 * alone > beside


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
