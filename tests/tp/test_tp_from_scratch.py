"""The bench's own check is the subject here: it must pass on right numbers and catch wrong ones."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from kernbench.errors import CheckFailedError
from kernbench.runtime_api import RuntimeContext

BENCH = Path(__file__).parents[2] / "benches" / "tp_from_scratch.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("tp_from_scratch", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tp_from_scratch"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tp_from_scratch"]


@pytest.mark.parametrize(
    ("ranks", "params"),
    [
        (2, {}),
        (1, {"steps": 2}),
        (3, {"num_dim": 12, "num_layers": 2, "batch_size": 5, "seed": 7}),
        (4, {"num_layers": 1, "steps": 1}),
    ],
)
def test_the_bench_holds_on_any_number_of_ranks(bench, capsys, ranks, params):
    with RuntimeContext(machine="ahbm", ranks=ranks) as torch:
        bench.run(torch, **params)
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == params.get("steps", 3)
    assert losses == sorted(losses, reverse=True), "training lowers the loss"


def test_without_data_it_runs_for_its_time_alone(bench, capsys):
    kernels = []
    for data in (False, True):
        with RuntimeContext(machine="ahbm", ranks=2, data=data) as torch:
            bench.run(torch)
            kernels.append(torch.report()["kernels"])
        assert (capsys.readouterr().out != "") == data
    assert kernels[0] == kernels[1]


def test_the_first_loss_is_that_of_the_problem(bench, capsys):
    data, weights = bench.make_problem(2, 8, 2, seed=3)
    with RuntimeContext(machine="ahbm", ranks=2) as torch:
        bench.run(torch, num_dim=8, num_layers=2, steps=1, seed=3)
    x = data
    for weight in weights:
        z = x @ weight
        x = 0.5 * z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))
    assert capsys.readouterr().out == f"step 1: loss {np.mean(x**2):.6f}\n"


def test_gradients_pass_central_differences(bench):
    data, weights = bench.make_problem(2, 12, 4, seed=0)
    grads = bench.reference_gradients(data, weights)
    bench.check_gradients(data, weights, grads, "here")
    for layer, weight in enumerate(weights):
        for at in ((0, 0), (5, 11)):
            losses = []
            for step in (1e-5, -1e-5):
                moved = weight.copy()
                moved[at] += step
                changed = [*weights[:layer], moved, *weights[layer + 1 :]]
                losses.append(bench.reference_loss(data, changed))
            slope = (losses[0] - losses[1]) / 2e-5
            assert grads[layer][at] == pytest.approx(slope, rel=1e-4, abs=1e-9)


def test_the_slope_at_the_activation_is_caught_by_central_differences(bench):
    """The twin: gelu differentiated behind the activation instead of before it."""
    data, weights = bench.make_problem(2, 12, 4, seed=0)
    xs, _ = bench.reference_forward(data, weights)
    grad = xs[-1] * (2.0 / xs[-1].size)
    wrong = []
    for weight, x, y in zip(weights[::-1], xs[-2::-1], xs[:0:-1], strict=True):
        grad_z = grad * bench.gelu_slope(y)
        wrong.append(x.T @ grad_z)
        grad = grad_z @ weight.T
    with pytest.raises(CheckFailedError, match="gradient of layer 0 differs from central"):
        bench.check_gradients(data, weights, wrong[::-1], "here")


def test_the_slope_at_the_activation_is_caught_on_the_device(bench, monkeypatch):
    right = bench.backward

    def wrong(torch, rank, weights, inputs, before_gelu, output):
        width = output.shape[1] // torch.world_size
        mine = slice(rank * width, (rank + 1) * width)
        behind = [item[:, mine].contiguous() for item in [*inputs[1:], output]]
        return right(torch, rank, weights, inputs, behind, output)

    monkeypatch.setattr(bench, "backward", wrong)
    with (
        RuntimeContext(machine="ahbm", ranks=2) as torch,
        pytest.raises(CheckFailedError, match="gradient of layer 0 differs from one rank"),
    ):
        bench.run(torch)


def test_an_update_without_weight_decay_is_caught(bench, monkeypatch):
    monkeypatch.setattr(bench.ReferenceAdamW, "update", _no_decay(bench.ReferenceAdamW.update))
    with (
        RuntimeContext(machine="ahbm", ranks=2) as torch,
        pytest.raises(CheckFailedError, match="weight of layer 0 after the last update differs"),
    ):
        bench.run(torch, steps=1)


def _no_decay(update):
    def without(self, grads):
        before = [weight.copy() for weight in self.weights]
        update(self, grads)
        self.weights = [
            weight + 1e-3 * 0.01 * old for weight, old in zip(self.weights, before, strict=True)
        ]

    return without


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_dim": 33}, r"num_dim \(33\).*\(2\)"),
        ({"steps": 0}, "steps must be at least 1, but got 0"),
        ({"num_layers": 0}, "num_layers must be at least 1, but got 0"),
        ({"batch_size": -2}, "batch_size must be at least 1, but got -2"),
    ],
)
def test_bad_parameters_are_refused_with_their_numbers(bench, params, message):
    with (
        RuntimeContext(machine="ahbm", ranks=2) as torch,
        pytest.raises(ValueError, match=message),
    ):
        bench.run(torch, **params)
