"""Functions of PyTorch in place of overloads: only where they do the same, and seen by nobody."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from kernbench.torch_bridge.base import direct
from kernbench.torch_bridge.base.operations import describe
from tests.torch_bridge.running import simulated

aten = torch.ops.aten


def first(func: Any, *args: Any, **kwargs: Any) -> tuple[Any, bool]:
    """Return the result of a first call, and whether a function is to be used from then on."""
    operation = describe(func)
    result, call = direct.execute_first(func, operation, args, kwargs)
    return result, call is not operation.call


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (aten.mm.default, ("x", "y"), {}),
        (aten.add.Tensor, ("x", "y"), {"alpha": 2}),
        (aten.sum.dim_IntList, ("x", [1], True), {}),
        (aten.cat.default, (["x", "y"], 1), {}),
        (aten.mul.Tensor, ("x", 2.5), {}),
        (aten.gelu.default, ("x",), {"approximate": "tanh"}),
        (aten.mul_.Tensor, ("x", "y"), {}),
    ],
)
def test_a_function_that_comes_to_the_same_call_is_used(func: Any, args: Any, kwargs: Any) -> None:
    def on(tensors: dict[str, Any]) -> list[Any]:
        return [
            [tensors[item] for item in arg] if arg == ["x", "y"] else tensors.get(str(arg), arg)
            for arg in args
        ]

    torch.manual_seed(0)
    tensors = {name: torch.randn(3, 3) for name in "xy"}
    expected = func(*on({name: tensor.clone() for name, tensor in tensors.items()}), **kwargs)
    result, is_direct = first(func, *on(tensors), **kwargs)
    assert is_direct
    assert torch.equal(result, expected)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: x.mul_(y),
        lambda x, y: x.add_(y).add_(y),
        lambda x, y: x.add_(y, alpha=3),
        lambda x, y: x.add_(y).clone(),
        lambda x: x,
    ],
)
def test_a_function_that_does_something_else_is_not_and_nothing_is_done_twice(
    other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_OWNERS", (SimpleNamespace(add_=other),))
    x, y = torch.full((2, 2), 5.0), torch.full((2, 2), 2.0)
    result, is_direct = first(aten.add_.Tensor, x, y)
    assert not is_direct
    assert result is x
    assert x.tolist() == [[7, 7], [7, 7]]


class Subclass(torch.Tensor):
    """Sees functions, and no overloads."""


def test_classes_of_the_program_and_single_numbers_are_left_to_the_overload() -> None:
    x = torch.ones(2, 2)
    for other in (x.as_subclass(Subclass), torch.tensor(2.0)):
        assert first(aten.mul.Tensor, x, x)[1]
        assert not first(aten.mul.Tensor, x, other)[1]
    assert not first(aten.cat.default, [x, x.as_subclass(Subclass)])[1]
    assert not first(aten.max.dim, x, 1)[1]  # a tuple with names for its parts


def test_errors_of_an_operation_are_its_own() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        first(aten.mm.default, torch.ones(2, 3), torch.ones(2, 3))
    tensor = torch.ones(2, dtype=torch.complex64)
    # Releases of PyTorch refuse it with different errors.
    with pytest.raises((NotImplementedError, TypeError)) as plain:
        torch.histc(tensor, 4)
    with pytest.raises(plain.type, match="not implemented for") as raises:
        first(aten.histc.default, tensor, 4)
    assert str(raises.value) == str(plain.value)


def test_modes_for_functions_see_what_the_program_calls(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        """
import torch
from torch.overrides import TorchFunctionMode
class Seen(TorchFunctionMode):
    names = []
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))
x = torch.ones(4, 4, device="cuda", requires_grad=True)
node, gradient = (x @ x).grad_fn, torch.ones(4, 4, device="cuda")
node(gradient)
with Seen() as seen:
    node(gradient)
    x.relu()
assert seen.names == ["relu"], seen.names
"""
    )
    simulated(path)
