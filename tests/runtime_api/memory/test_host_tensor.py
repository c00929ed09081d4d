"""Tensors of another library as arguments, with a stand-in for the library."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import BadPointerError, OutOfBoundsError
from kernbench.runtime_api.memory.host_tensor import LentMemory


class Foreign:
    """What PyTorch's tensors offer, over numpy memory: a slice of a storage."""

    def __init__(self, storage: np.ndarray[Any, Any], start: int = 0, kind: str = "cpu") -> None:
        self.values = storage[start:]
        self.shape = self.values.shape
        self.dtype = f"torch.{storage.dtype.name}"
        self.device = SimpleNamespace(type=kind)
        self._storage = storage

    def data_ptr(self) -> int:
        return self.values.ctypes.data

    def untyped_storage(self) -> Any:
        storage = self._storage
        return SimpleNamespace(data_ptr=lambda: storage.ctypes.data, nbytes=lambda: storage.nbytes)


class OnlyBytes:
    """An array-like without a storage."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values, self.dtype, self.nbytes = values, "float32", values.nbytes

    def data_ptr(self) -> int:
        return self.values.ctypes.data


@triton.jit
def add_one(x, out, n, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + where, mask=where < n)
    tl.store(out + where, value + 1, mask=where < n)


@triton.jit
def shift_by_one(x, out, BLOCK: tl.constexpr):
    where = tl.arange(0, BLOCK)
    tl.store(out + where, tl.load(x + where))


@pytest.mark.adr("0040-D1", "0040-D3")
def test_a_launch_on_foreign_tensors_has_written_them_when_it_returns() -> None:
    x = np.arange(100, dtype=np.float32)
    out = np.zeros(100, np.float32)
    with kernbench.RuntimeContext(ranks=1):
        add_one[(4,)](Foreign(x), Foreign(out), 100, BLOCK=32)
        np.testing.assert_array_equal(out, x + 1)


@pytest.mark.adr("0040-D1")
def test_foreign_and_own_tensors_mix_and_earlier_launches_are_seen() -> None:
    x = np.arange(64, dtype=np.float32)
    out = np.zeros(64, np.float32)
    with kernbench.RuntimeContext(ranks=1) as torch:
        between = torch.zeros(64)
        add_one[(2,)](Foreign(x), between, 64, BLOCK=32)
        add_one[(2,)](between, Foreign(out), 64, BLOCK=32)
    np.testing.assert_array_equal(out, x + 2)


@pytest.mark.adr("0040-D1")
def test_two_views_of_one_storage_overlap_as_they_do_on_a_device() -> None:
    storage = np.arange(65, dtype=np.float32)
    with kernbench.RuntimeContext(ranks=1):
        shift_by_one[(1,)](Foreign(storage), Foreign(storage, 1), BLOCK=64)
    # All is loaded before anything is stored.
    np.testing.assert_array_equal(storage, [0, *range(64)])


def test_an_array_without_a_storage_is_known_by_its_size() -> None:
    x, out = np.ones(32, np.float32), np.zeros(32, np.float32)
    with kernbench.RuntimeContext(ranks=1):
        add_one[(1,)](OnlyBytes(x), OnlyBytes(out), 32, BLOCK=32)
    np.testing.assert_array_equal(out, 2)


@pytest.mark.adr("0040-D2")
def test_leaving_a_foreign_storage_is_an_error_that_names_the_argument() -> None:
    x, out = np.zeros(32, np.float32), np.zeros(16, np.float32)
    with (
        pytest.raises(OutOfBoundsError, match=r"out\+64 .* out \(16,\) float32 is 64"),
        kernbench.RuntimeContext(ranks=1),
    ):
        add_one[(1,)](Foreign(x), Foreign(out), 32, BLOCK=32)


@pytest.mark.adr("0040-D4")
def test_a_foreign_tensor_costs_no_transfer_and_one_on_another_device_is_refused() -> None:
    x, out = np.zeros(32, np.float32), np.zeros(32, np.float32)
    with kernbench.RuntimeContext(ranks=1) as torch:
        add_one[(1,)](Foreign(x), Foreign(out), 32, BLOCK=32)
        assert [kernel["name"] for kernel in torch.report()["kernels"]] == ["add_one"]
        with pytest.raises(BadPointerError, match="x of kernel add_one lies on device"):
            add_one[(1,)](Foreign(x, kind="cuda"), Foreign(out), 32, BLOCK=32)


def test_an_address_in_no_tensor_is_refused() -> None:
    simple_namespace = SimpleNamespace(data_ptr=lambda: 4096, dtype="float32")
    with (
        pytest.raises(BadPointerError, match=r"x of kernel add_one, a Simple.* 0x1000"),
        kernbench.RuntimeContext(ranks=1),
    ):
        add_one[(1,)](simple_namespace, simple_namespace, 32, BLOCK=32)


@pytest.mark.adr("0050-D7")
def test_an_address_inside_a_lent_tensor_leads_to_its_memory() -> None:
    lent, tensor = LentMemory(), Foreign(np.array([1.0, 2.0, 3.0], np.float32))
    assert lent.find(tensor.data_ptr(), 0) is None
    lent.lend(tensor)
    lent.lend(tensor)
    buffer = lent.find(tensor.data_ptr() + 8, 0)
    assert buffer is not None
    assert buffer.bytes.view(np.float32).tolist() == [1.0, 2.0, 3.0]
    buffer.bytes.view(np.float32)[2] = 7.0
    assert tensor.values[2] == 7.0, "nothing was copied"
    assert lent.find(tensor.data_ptr() + 12, 0) is None


@pytest.mark.adr("0050-D7")
@pytest.mark.usefixtures("collects_own")
def test_a_tensor_that_is_gone_is_reached_no_more() -> None:
    lent, tensor = LentMemory(), Foreign(np.array([1.0], np.float32))
    lent.lend(tensor)
    address = tensor.data_ptr()
    del tensor
    gc.collect()
    assert lent.find(address, 0) is None
    assert not lent._tensors
