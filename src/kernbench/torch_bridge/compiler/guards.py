"""Guards on the simulated device of a tensor, which C++ does not know."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_bridge.base.operations import PLAIN
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.processes.call_counts import unseen


def install(patches: Patches) -> None:
    """Guard what is compiled for a tensor by the tensor's device, too."""
    from torch._dynamo.guards import GuardBuilder

    patches.set(GuardBuilder, "TENSOR_MATCH", _also_by_device(GuardBuilder.TENSOR_MATCH))


def _also_by_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def match(self: Any, guard: Any, value: Any = None) -> Any:
        result = original(self, guard, value)
        seen = self.get(guard) if value is None else value
        if callable(seen) and not isinstance(seen, torch.Tensor):
            seen = seen()
        if isinstance(seen, torch.Tensor) and type(seen) in PLAIN:
            expected = device_of(seen)
            self.get_guard_manager(guard).add_lambda_guard(
                unseen(lambda tensor: device_of(tensor) == expected),
                [f"device_of({getattr(guard, 'name', '?')}) == {expected}"],
                guard.user_stack,
            )
        return result

    return match
