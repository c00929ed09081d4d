"""Triton's handle on cuBLASLt: products as PyTorch's, timed as them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402


def test_products_of_the_vendors_library_are_those_of_pytorch() -> None:
    # The program compares the numbers.
    run = simulated("vendor_products.py")
    assert {"aten.mm", "aten.addmm"} <= {item["name"] for item in run.report()["kernels"]}
