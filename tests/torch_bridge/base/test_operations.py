"""What is known of an operation by its schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.base.operations import describe  # noqa: E402


def test_what_asks_a_tensor_for_its_device_is_free_though_the_dispatcher_has_it_not() -> None:
    operation = describe(torch.ops.prim.device.default)
    assert operation.is_free
    assert operation.call(torch.ones(2)) == torch.device("cpu")


_FILE = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"


def _entries() -> list[tuple[Any, str]]:
    """Return PyTorch's operations of two and more tensors (or lists), with their entries."""
    entries = []
    for entry in _FILE.read_text().split("- func: ")[1:]:
        name, _, overload = entry.partition("(")[0].partition(".")
        func = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if func is None:
            continue  # Not in this build.
        kinds = [str(item.type) for item in func._schema.arguments if not item.is_out]
        tensors = [kind for kind in kinds if "Tensor" in kind]
        if len(tensors) > 1 or any("List" in kind for kind in tensors):
            entries.append((func, entry))
    return entries


def test_host_operands_are_taken_where_a_cuda_build_takes_them() -> None:
    refused, taken, composed = set(), set(), set()
    for func, entry in _entries():
        operation = describe(func)
        dispatch = re.findall(r"[A-Za-z]+", entry.partition("dispatch:")[2])
        if operation.is_free or not ("CUDA" in dispatch or "structured_delegate" in entry):
            composed |= {func} if operation.composed_at else set()
            continue
        is_refused = operation.is_on_one_device and not operation.takes_numbers
        refused |= {func} if is_refused else set()
        taken |= {func} if operation.takes_numbers else set()
        of_a_library = re.search("cudnn|miopen", str(func)) is not None
        assert is_refused == ("device_check: NoCheck" not in entry) or of_a_library, func
    for numbers in ("mul.Tensor", "where.self", "clamp.Tensor_out", "masked_fill_.Tensor"):
        assert f"aten.{numbers}" in map(str, taken)
    assert len(refused) > 200
    assert len(composed) > 50
