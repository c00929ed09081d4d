from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest

from kernbench.runtime_api.memory.lent_memory import LentMemory


class HostTensor:
    """As much of a PyTorch tensor as a launch asks for, on numpy's memory."""

    def __init__(self, values: list[float]) -> None:
        self.array = np.array(values, dtype=np.float32)
        self.device = SimpleNamespace(type="cpu")
        self.shape, self.dtype = self.array.shape, "torch.float32"

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> SimpleNamespace:
        return SimpleNamespace(data_ptr=self.data_ptr, nbytes=lambda: self.array.nbytes)


@pytest.mark.adr("0050-D7")
def test_an_address_inside_a_lent_tensor_leads_to_its_memory() -> None:
    lent, tensor = LentMemory(), HostTensor([1.0, 2.0, 3.0])
    assert lent.find(tensor.data_ptr(), 0) is None
    lent.lend(tensor)
    lent.lend(tensor)
    buffer = lent.find(tensor.data_ptr() + 8, 0)
    assert buffer is not None
    assert buffer.bytes.view(np.float32).tolist() == [1.0, 2.0, 3.0]
    buffer.bytes.view(np.float32)[2] = 7.0
    assert tensor.array[2] == 7.0, "nothing was copied"
    assert lent.find(tensor.data_ptr() + 12, 0) is None


@pytest.mark.adr("0050-D7")
def test_a_tensor_that_is_gone_is_reached_no_more() -> None:
    lent, tensor = LentMemory(), HostTensor([1.0])
    lent.lend(tensor)
    address = tensor.data_ptr()
    del tensor
    gc.collect()
    assert lent.find(address, 0) is None
    assert not lent._tensors
