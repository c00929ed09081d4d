"""What is known of an operation by its schema."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.base.operations import describe  # noqa: E402


def test_what_asks_a_tensor_for_its_device_is_free_though_the_dispatcher_has_it_not() -> None:
    operation = describe(torch.ops.prim.device.default)
    assert operation.is_free
    assert operation.call(torch.ones(2)) == torch.device("cpu")
