"""What calls of compiled functions take the host, where calls of Python take a second each."""

import time
from collections.abc import Callable
from functools import partial

import torch

LAUNCH_US, WRAPPER_US, CALL_US, RECORD_US, NODE_US, REPLAY_US = 1e3, 3e3, 20e3, 100e3, 50e3, 300e3
PYTHON_US = 1e6


def taken(step: Callable[[], object]) -> tuple[float, float]:
    """Return how many Python calls a step takes, and the microseconds beside them."""
    for _ in range(5):
        step()
    # The first way from the clock to a step takes the calls of the step before (ADR-0130, D6), and
    # the first steps some that PyTorch makes once.
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        took_us = (time.perf_counter() - began) * 1e6
    return divmod(took_us, PYTHON_US)


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * x + 1


class Pointwise(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return pointwise(x)


def of_many(*operands: torch.Tensor) -> torch.Tensor:
    return sum(operands[1:], operands[0])


def replayed() -> None:
    """Call a graph that is captured: inputs are copied at once, however many they are."""
    operands = [torch.ones(32, 64, device="cuda") for _ in range(10)]
    captured = torch.compile(of_many, mode="reduce-overhead")
    with torch.no_grad():
        _, rest = taken(lambda: captured(*operands))
    assert 0 <= rest - WRAPPER_US - CALL_US - REPLAY_US < 100, rest


def main() -> None:
    """Call one graph of one kernel: of a function, of a module, forward and backward."""
    replayed()
    x = torch.ones(32, 64, device="cuda", requires_grad=True)
    tensor = torch.ones(32, 64, device="cuda")
    nothing, _ = taken(lambda: None)
    functions: tuple[Callable[..., torch.Tensor], ...] = (pointwise, Pointwise())
    with torch.no_grad():
        for eager in functions:
            of_program, _ = taken(partial(eager, x))
            num_calls, rest = taken(partial(torch.compile(eager), x))
            # PyTorch itself calls some 90.
            assert abs(num_calls - of_program) <= 2, (eager, num_calls, of_program)
            assert 0 <= rest - LAUNCH_US - WRAPPER_US - CALL_US < 100, (eager, rest)
    # The counting itself goes on as before.
    assert taken(lambda: None)[0] == nothing
    step = torch.compile(pointwise)
    _, rest = taken(lambda: step(x))
    assert 0 <= rest - LAUNCH_US - WRAPPER_US - CALL_US - RECORD_US < 100, rest

    def backward_of(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, float]:
        outs = [function(x) for _ in range(8)]
        return taken(lambda: torch.autograd.grad(outs.pop(), x, tensor))

    of_program, _ = backward_of(pointwise)
    num_calls, rest = backward_of(step)
    assert abs(num_calls - of_program) <= 2, (num_calls, of_program)
    assert 0 <= rest - LAUNCH_US - WRAPPER_US - NODE_US < 100, rest


if __name__ == "__main__":
    main()
