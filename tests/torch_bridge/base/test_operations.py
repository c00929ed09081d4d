"""What is known of an operation by its schema."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.base import operations  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402


def test_what_asks_a_tensor_for_its_device_is_free_though_the_dispatcher_has_it_not() -> None:
    operation = describe(torch.ops.prim.device.default)
    assert operation.is_free
    assert operation.call(torch.ones(2)) == torch.device("cpu")


def test_numbers_of_the_host_are_taken_by_what_a_cuda_build_does_not_check() -> None:
    site = Path(torch.__file__).parents[1]
    file = site / "torchgen/packaged/ATen/native/native_functions.yaml"
    entries = file.read_text().split("- func: ")[1:]
    names = [re.split(r"[.(]", entry)[0].rstrip("_") for entry in entries]
    unchecked = {
        name for name, entry in zip(names, entries, strict=True) if "device_check: NoCheck" in entry
    }
    # These call ``index`` and ``isclose``.
    composed = {"_unsafe_index", "allclose"}
    with_numbers = set(operations._NAMES_WITH_NUMBERS.split())
    assert with_numbers - composed <= unchecked
    assert not unchecked & (set(operations._NAMES_ON_ONE_DEVICE.split()) - with_numbers)
