"""Recurrent layers on a device: one operation, with the numbers and shapes of PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.costs import OperationCosts  # noqa: E402
from kernbench.torch_bridge.processes.float32 import Float32  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

SOURCE = """
import itertools
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

torch.manual_seed(0)
KINDS = [
    (nn.LSTM, dict(num_layers=2, bidirectional=True, batch_first=True)),
    (nn.LSTM, dict(proj_size=3, num_layers=2, bias=False)),
    (nn.GRU, dict(num_layers=2, bidirectional=True)),
    (nn.RNN, dict(batch_first=True)),
    (nn.RNN, dict(nonlinearity="relu", bidirectional=True)),
]

def run(layer, given, state):
    leaves = [*layer.parameters()]
    if isinstance(given, torch.Tensor):
        leaves.append(given.requires_grad_())
    out, ended = layer(given, state)
    out = out if isinstance(out, torch.Tensor) else out.data
    results = [out, *(ended if isinstance(ended, tuple) else [ended])]
    outer = [torch.linspace(-1, 1, each.numel()).view(each.shape).to(each) for each in results]
    return results, torch.autograd.grad(results, leaves, outer)

def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == "cuda" and one.shape == other.shape, (one.shape, other.shape)
        if DATA:
            torch.testing.assert_close(one.cpu(), other)

for kind, how in KINDS:
    here = kind(5, 4, **how)
    there = kind(5, 4, **how).cuda()
    there.load_state_dict(here.state_dict())
    sequences = [torch.randn(length, 5) for length in (3, 3, 1, 1)]
    count = here.num_layers * (1 + here.bidirectional)
    state = torch.randn(count, 4, here.proj_size or 4)
    if kind is nn.LSTM:
        state = state, torch.randn(count, 4, 4)
    moved = tuple(each.cuda() for each in state) if kind is nn.LSTM else state.cuda()
    batch = torch.randn(4, 2, 5)
    if not here.batch_first:
        batch = batch.transpose(0, 1).contiguous()
    found, expected = run(there, batch.cuda(), moved), run(here, batch, state)
    assert found[0][0].stride() == expected[0][0].stride()
    same(found[0], expected[0])
    same(found[1], expected[1])
    if DATA:
        packed = pack_sequence(sequences)
        there_packed = pack_sequence([each.cuda() for each in sequences])
        same([there_packed.data], [packed.data])
        for results in zip(run(there, there_packed, moved), run(here, packed, state)):
            same(*results)

for how in itertools.product((False, True), (0.0, -1.0), ("left", "right")):
    expected = nn.utils.rnn.pad_sequence(sequences, *how)
    moved = [each.cuda().requires_grad_() for each in sequences]
    found = nn.utils.rnn.pad_sequence(moved, *how)
    same([found.detach()], [expected])
    found.sum().backward()
    assert all(each.grad.device.type == "cuda" for each in moved)
for bad in ([], sequences):
    try:
        nn.utils.rnn.pad_sequence(bad, padding_side="middle")
    except RuntimeError:
        continue
    raise AssertionError("not refused")

layer = nn.LSTM(8, 8, 2, dropout=0.5, device="cuda")
x = torch.randn(3, 2, 8, device="cuda", requires_grad=True)
layer.flatten_parameters()
torch.cuda.manual_seed(3); first = layer(x)[0]
torch.cuda.manual_seed(3); again = layer(x)[0]
gradients = [torch.autograd.grad(each.sum(), x)[0] for each in (first, again)]
if DATA:
    assert torch.equal(first, again) and torch.equal(*gradients)
    assert not torch.equal(first, layer(x)[0])
with torch.autocast("cuda", torch.float16):
    assert layer(x)[0].dtype == torch.float16
with torch.no_grad():
    assert layer.half()(x.half())[0].dtype == torch.float16
layer.float().eval()
out = layer(x)[0]
try:
    out.sum().backward()
except RuntimeError as error:
    assert "training mode" in str(error)
else:
    raise AssertionError("not refused")
with torch.backends.cudnn.flags(enabled=False):
    layer(x)[0].sum().backward()
try:
    layer(x.cpu())
except RuntimeError as error:
    assert "cuda" in str(error) and "cpu" in str(error), error
else:
    raise AssertionError("not refused")
"""


@pytest.mark.parametrize("data", [True, False])
def test_layers_are_one_operation_of_a_device(data: bool, tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(SOURCE.replace("DATA", str(data)))
    log = simulated(path, data=data, machine="rtx-3090:1").op_log
    names = [instance.template.name for instance in log.instances]
    assert {"aten._cudnn_rnn", "aten._cudnn_rnn_backward"} <= set(names)
    # Those of the one layer that is composed.
    assert names.count("aten.tanh_backward") <= 12
    # After a run PyTorch composes layers again.
    layer = torch.nn.LSTM(4, 4)
    assert layer(torch.ones(2, 1, 4))[0].grad_fn.name() != "CudnnRnnBackward0"


def empty(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def weights(layers: int, directions: int, number: int, hidden: int) -> Iterator[Any]:
    for layer in range(layers):
        for _ in range(directions):
            yield empty(4 * hidden, number if not layer else directions * hidden)
            yield empty(4 * hidden, hidden)
            yield empty(4 * hidden)
            yield empty(4 * hidden)


def schedule(
    machine: Any,
    steps: int,
    *,
    layers: int = 1,
    directions: int = 1,
    batch: int = 64,
    hidden: int = 128,
    first: bool = False,
    sizes: tuple[int, ...] = (),
    dtype: Any = torch.float16,
) -> Any:
    """Return the schedule of an LSTM's forward pass."""
    shape = (sum(sizes),) if sizes else (batch, steps) if first else (steps, batch)
    states = [empty(layers * directions, batch, hidden)] * 2
    args = (
        empty(*shape, hidden, dtype=dtype), list(weights(layers, directions, hidden, hidden)),
        4, None, *states,
        2, hidden, 0, layers, first, 0.0, False, directions == 2, list(sizes), None,
    )  # fmt: skip
    func = torch.ops.aten._cudnn_rnn.default
    costs = OperationCosts(machine, Float32())
    return costs.timing(func, describe(func), args, {}, empty(1), 0).template(True)


@pytest.mark.parametrize("name", ["ahbm", "rtx-3090"])
def test_steps_of_all_layers_and_directions_are_one_chain(name: str) -> None:
    from kernbench.hardware import load_machine

    machine = load_machine(name, 1)

    def time(steps: int, **more: Any) -> int:
        number: int = schedule(machine, steps, **more).duration_ps
        return number

    step = (time(40) - time(20)) / 20
    assert step == pytest.approx((time(80) - time(40)) / 40, rel=0.2)
    # The second direction or layer begins when the first has ended.
    assert time(40, directions=2) == pytest.approx(2 * time(40), rel=0.05)
    assert time(40, layers=2) == pytest.approx(2 * time(40), rel=0.05)
    # Twice the multiplications, and all of the steps.
    assert schedule(machine, 40, layers=2).flops >= 1.9 * schedule(machine, 40).flops
    assert time(1) >= schedule(machine, 1).bound_ps > 0
    # What lies by sequence is copied first; sequences that end leave smaller steps.
    assert time(40, first=True) > time(40)
    assert time(40) == time(40, sizes=(64,) * 40) > time(40, sizes=(64,) * 20 + (8,) * 20)
    rows = schedule(machine, 3).make_rows()
    assert max(rows["end_ps"]) <= schedule(machine, 3).duration_ps


@pytest.mark.parametrize(
    ("name", "one_way_ms", "both_ways_ms"),
    [
        ("h100-sxm", (16.9, 28.0), (32.0,)),
        ("h100-pcie", (29.3,), ()),
        ("a100-sxm-80g", (32.4, 28.3), (50.8, 58.4)),
        ("l40s", (17.4, 19.2), (38.7,)),
        ("t4", (32.3,), (71.8,)),
        ("l4", (18.5,), (38.8,)),
    ],
)
def test_a_chain_of_narrow_steps_is_within_half_of_what_was_measured(
    name: str, one_way_ms: tuple[float, ...], both_ways_ms: tuple[float, ...]
) -> None:
    """KernelBench level3/35, 37 and 38 at 6e6fca9c, dacd881c, 80c03d44, 4082b873, 15c880c7."""
    from kernbench.hardware import load_machine

    machine = load_machine(name, 1)
    for directions, measured in ((1, one_way_ms), (2, both_ways_ms)):
        how: dict[str, Any] = {"layers": 6, "directions": directions, "hidden": 256}
        duration_ps = schedule(machine, 512, batch=10, dtype=torch.float32, **how).duration_ps / 1e9
        for item in measured:
            assert item / 1.6 < duration_ps < 1.6 * item
        # The host launches a step of one sequence in the same time.
        alone = schedule(machine, 512, batch=1, dtype=torch.float32, **how).duration_ps / 1e9
        assert alone > 0.7 * duration_ps


WITHOUT_CUDNN = """
import torch

layer = torch.nn.LSTM(8, 8).cuda()
given = torch.zeros(4, 2, 8).cuda()
with torch.backends.cudnn.flags(enabled=False), torch.no_grad():
    layer(given)
assert torch.backends.mkldnn.enabled == EXPECTED
"""


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_without_cudnn_a_layer_is_composed_of_steps(tmp_path: Path, data: bool) -> None:
    program = tmp_path / "composed.py"
    program.write_text(WITHOUT_CUDNN.replace("EXPECTED", str(torch.backends.mkldnn.enabled)))
    log = simulated(program, machine="a100-sxm-80g", data=data).op_log
    names = [instance.template.name for instance in log.instances for _ in instance.starts_ps]
    # Two products and a kernel each, as on CUDA; not the layer of the host's library.
    assert names.count("aten.mm") == 8
    assert names.count("aten._thnn_fused_lstm_cell") == 4
    assert not any("mkldnn" in name or "cudnn" in name for name in names)


CELLS = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
data, double = DATA, torch.float64

def gradients(module, x, *given):
    # All that a module makes, and its gradients.
    module.zero_grad()
    x = x.detach().requires_grad_()
    found = module(x, *given)
    flat = []
    for each in found if isinstance(found, tuple) else (found,):
        flat += each if isinstance(each, tuple) else (each,)
    sum((each * each).sum() for each in flat).backward()
    return [*flat, x.grad, *(each.grad.clone() for each in module.parameters())]

class Packed(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
    def forward(self, x):
        packed = pack_padded_sequence(x, [5, 4, 2], batch_first=self.layer.batch_first)
        out, states = self.layer(packed)
        return pad_packed_sequence(out, batch_first=self.layer.batch_first)[0], states

def same(module, x, *given):
    module, x = module.to(double), x.to(double)
    expected = gradients(module, x, *given)
    there = gradients(module.cuda(), x.cuda(), *(tuple(s.cuda() for s in each)
        if isinstance(each, tuple) else each.cuda() for each in given))
    for mine, its in zip(there, expected, strict=True):
        assert (mine.shape, mine.device.type) == (its.shape, "cuda")
        if data:
            torch.testing.assert_close(mine.detach().cpu(), its.detach())
    module.cpu()

with torch.backends.cudnn.flags(enabled=False):
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        for how in ({}, {"bidirectional": True, "num_layers": 2}, {"bias": False},
                    {"batch_first": True, "bidirectional": True}):
            layer = kind(6, 8, **how)
            x = torch.randn(3, 5, 6) if how.get("batch_first") else torch.randn(5, 3, 6)
            same(layer, x)
            same(Packed(layer), x)
    same(torch.nn.LSTM(6, 8, proj_size=4, num_layers=2), torch.randn(5, 3, 6))
    torch.nn.GRU(6, 8, num_layers=2, dropout=0.5).cuda()(torch.randn(5, 3, 6).cuda())
for bias in (True, False):
    state = torch.randn(3, 8, dtype=double)
    same(torch.nn.LSTMCell(6, 8, bias=bias), torch.randn(3, 6), (state, state * 2))
    same(torch.nn.GRUCell(6, 8, bias=bias), torch.randn(3, 6), state)
with torch.autocast("cuda", torch.float16):
    cell = torch.nn.LSTMCell(6, 8).cuda()
    assert cell(torch.randn(3, 6).cuda())[0].dtype == torch.float16
for given, said in (
    ((torch.zeros(3, 5), torch.zeros(3, 8)), "inconsistent input_size: got 5 expected 6"),
    ((torch.zeros(3, 6), torch.zeros(2, 8)), "doesn't match hidden0 batch size 2"),
    ((torch.zeros(3, 6), torch.zeros(3, 7)), "hidden0 has inconsistent hidden_size: got 7"),
):
    try:
        torch.nn.GRUCell(6, 8).cuda()(*(each.cuda() for each in given))
    except RuntimeError as error:
        assert said in str(error), error
    else:
        raise AssertionError("not refused")
"""


@pytest.mark.parametrize("data", daily(True, of=(True, False)), ids=["data", "no-data"])
def test_cells_are_two_products_and_a_kernel_of_a_device(tmp_path: Path, data: bool) -> None:
    program = tmp_path / "cells.py"
    program.write_text(CELLS.replace("DATA", str(data)))
    log = simulated(program, machine="a100-sxm-80g", data=data).op_log
    names = {instance.template.name for instance in log.instances}
    fused = "aten._thnn_fused_"
    assert {name.removeprefix(fused) for name in names if name.startswith(fused)} == {
        "lstm_cell", "lstm_cell_backward_impl", "gru_cell", "gru_cell_backward",
    }  # fmt: skip
    assert not names & {"aten.sigmoid", "aten.sigmoid_", "aten.tanh", "aten.tanh_"}
    # After a run PyTorch composes them again.
    cell = torch.nn.LSTMCell(6, 8)
    assert "Thnn" not in cell(torch.ones(3, 6))[1].grad_fn.name()
