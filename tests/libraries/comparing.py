"""Comparing two functions, their results and their gradients, on a simulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., torch.Tensor]
Case = Callable[[], None]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return numbers drawn anew, on the device."""
    return torch.randn(shape, device="cuda").to(dtype)


def _observed(function: Function, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return a function's result, and its inputs' gradients under fixed weights of the result."""
    own = [item.detach().clone().requires_grad_() for item in inputs]
    result = function(*own)
    count = result.numel()
    weights = torch.sin(torch.arange(count, device="cuda") + 1.0).view(result.shape)
    result.backward(weights.to(result.dtype))
    return [result.detach(), *(item.grad for item in own if item.grad is not None)]


def check_same(
    function: Function, definition: Function, *inputs: torch.Tensor, tolerance: float = 2e-3
) -> None:
    """Hold a function to its definition: error over size, of the result and of each gradient.

    Raises:
        AssertionError: One of them is further off than ``tolerance``.
    """
    result, expected = _observed(function, inputs), _observed(definition, inputs)
    assert len(result) == len(expected), "they have not the same gradients"
    for place, (a, b) in enumerate(zip(result, expected, strict=True)):
        error = (a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-12)
        name = f"gradient {place - 1}" if place else "the result"
        assert error.item() <= tolerance, f"{name} is off by {error.item():.2g} of its size"


def run_cases(library: str, cases: dict[str, Case]) -> tuple[int, int]:
    """Run each case, say how it went, and return how many passed, and of how many."""
    passed = 0
    for name, case in cases.items():
        torch.manual_seed(0)
        try:
            case()
        except Exception as error:
            first: Any = str(error).strip().partition("\n")[0]
            print(f"{library} {name}: {type(error).__name__}: {first}", flush=True)
        else:
            passed += 1
            print(f"{library} {name}: passed", flush=True)
    return passed, len(cases)
