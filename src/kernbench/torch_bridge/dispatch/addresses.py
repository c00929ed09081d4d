"""Addresses that programs have read by ``data_ptr()``, and the memory behind them.

Kernels get addresses from objects that have ``data_ptr()`` and are not tensors, and from tables in
memory. A program can only know addresses that ``data_ptr()`` returned, so only those are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from kernbench.errors import BadPointerError, UnreachableError
from kernbench.memory import Buffer
from kernbench.runtime_api import HostMemory, LentMemory, unreachable
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.dispatch.known_values import known_storage
from kernbench.torch_bridge.dispatch.touching import count_writes
from kernbench.torch_bridge.placement.names import device_at, unobserved
from kernbench.torch_bridge.placement.residence import cpp_place, residence_of, storage_of
from kernbench.torch_bridge.processes.process import current

_FIRST_ADDRESS = 1 << 44
"""The first address of device 0 without data, and the distance between devices."""
_FEW = 1 << 10

_data_ptr = Tensor.data_ptr
host_address: Any = torch.UntypedStorage.data_ptr
"""Returns where a storage lies in the memory of this machine; 0 without data."""
_is_expired: Any = torch.UntypedStorage._expired


class Addresses(LentMemory):
    """The storages of one run whose addresses its program has read; none is kept alive."""

    def __init__(self, has_data: bool) -> None:
        super().__init__()
        self._has_data = has_data
        self._storages: dict[int, StorageWeakRef] = {}
        """Storages by the address of their first byte."""
        self._asked: dict[int, StorageWeakRef] = {}
        """Storages by the addresses that were read: Triton reads them at every launch."""
        self._starts: list[int] | None = None
        """The addresses of first bytes, sorted; None if not sorted yet."""
        self._most = _FEW

    def of(self, tensor: Tensor) -> int:
        """Return the address of a tensor, and record its storage."""
        address = _data_ptr(tensor)
        asked = self._asked.get(address)
        if asked is not None and not _is_expired(asked.cdata):
            return address
        residence = residence_of(tensor)
        if residence is None or residence.device is None:
            return address
        start = self.of_storage(storage_of(tensor))
        if not start:
            return address
        if self._has_data:
            self._asked[address] = self._storages[start]
            return address
        return start + int(tensor.storage_offset()) * tensor.element_size()

    def of_storage(self, storage: Any) -> int:
        """Return the address of a storage's first byte, and record it; 0 where it has no memory."""
        storage = _owner_of(storage)
        residence = getattr(storage, "_kernbench", None)
        if residence is None or residence.device is None:
            return int(host_address(storage))
        start = self._start(storage, residence)
        if start:
            known = self._storages.get(start)
            if known is None or known.cdata != storage._cdata or known.expired():
                self._keep(start, storage)
        return start

    def known_buffer(self, tensor: Tensor, sip_id: int) -> Buffer:
        """Return the memory of a tensor in a run without data, with its bytes if they are known."""
        start = self.of(tensor) - int(tensor.storage_offset()) * tensor.element_size()
        return _known_buffer(start, storage_of(tensor), sip_id)

    def forget_numbers(self, buffer: Buffer) -> None:
        """Mark the contents of a buffer of :meth:`known_buffer` as unknown."""
        pair = self._find(buffer.address)
        if pair is not None:
            pair[1]._known = None

    def forget(self) -> None:
        """Drop the addresses that were read: a storage has moved, and its memory may be reused."""
        self._asked.clear()

    def tensor_at(self, address: int) -> Tensor:
        """Return the bytes from an address to the end of its storage.

        Raises:
            BadPointerError: It is in no live storage of a device.
        """
        pair = self._find(address)
        if pair is None:
            raise BadPointerError(
                f"goes to address {address:#x}, which belongs to no live tensor of a simulated "
                "device; was the tensor freed, or is it on the host?"
            )
        start, storage = pair
        return _bytes_of(storage, address - start)

    def find(self, address: int, sip_id: int) -> Buffer | None:
        """Return the memory that holds an address; None if none does.

        Raises:
            UnreachableError: It is on another device.
        """
        pair = self._find(address)
        if pair is None:
            return super().find(address, sip_id)
        start, storage = pair
        residence = storage._kernbench
        shared = getattr(storage, "_kernbench_shared", None)
        if shared is not None:
            why_not = "" if shared.sip_id == sip_id else unreachable(shared, sip_id)
            if why_not:
                raise UnreachableError(f"lies in {shared.name} on {residence.device}; {why_not}")
            return shared
        if residence.sip_id != sip_id:
            raise UnreachableError(
                f"lies on {residence.device}, but the kernel runs on {device_at(sip_id)}"
            )
        if not self._has_data:
            return _known_buffer(start, storage, sip_id)
        buffer = buffer_of_storage(storage, sip_id, "memory")
        order = current().order
        if order is not None:
            count_writes(order, _bytes_of(storage, 0), buffer)
        return buffer

    def _start(self, storage: Any, residence: Any) -> int:
        if self._has_data:
            return int(host_address(storage))
        if residence.block is None:
            return 0
        return int((residence.sip_id + 1) * _FIRST_ADDRESS + residence.block.address)

    def _keep(self, start: int, storage: Any) -> None:
        self._storages[start] = StorageWeakRef(storage)
        self._starts = None
        if len(self._storages) + len(self._asked) > self._most:
            self._asked.clear()
            self._storages = {
                at: storage for at, storage in self._storages.items() if not storage.expired()
            }
            self._most = 2 * len(self._storages) + _FEW

    def _find(self, address: int) -> tuple[int, Any] | None:
        """Return the storage that holds an address, after the address of its first byte."""
        if self._starts is None:
            self._starts = sorted(self._storages)
        for position in range(bisect_right(self._starts, address) - 1, -1, -1):
            start = self._starts[position]
            storage = torch.UntypedStorage._new_with_weak_ptr(self._storages[start].cdata)
            residence = None if storage is None else getattr(storage, "_kernbench", None)
            # The storage may have been freed or moved since its address was read.
            if residence is not None and self._start(storage, residence) == start:
                return (start, storage) if address < start + storage.nbytes() else None
        return None


def _owner_of(storage: Any) -> Any:
    """Return the storage that has the memory which one of another rank shows."""
    is_shared = getattr(storage, "_kernbench_shared", None) is not None
    return getattr(storage, "_kernbench_owner", storage) if is_shared else storage


def buffer_of_storage(storage: Any, sip_id: int, name: str) -> Buffer:
    """Return the memory of a storage, for kernels on a SIP."""
    whole = _bytes_of(storage, 0)
    with unobserved():
        return HostMemory(sip_id).tensor(whole, name, "an address in memory").buffer


def _known_buffer(start: int, storage: Any, sip_id: int) -> Buffer:
    known = known_storage(storage)
    label = f"memory at {start:#x}"
    buffer = Buffer(max(start, 0), storage.nbytes(), sip_id, label, known is not None)
    if known is not None:
        with unobserved():
            # The kernel writes into the known bytes.
            buffer.adopt(_bytes_of(known, 0).numpy())
    return buffer


def _bytes_of(storage: Any, offset: int) -> Tensor:
    """Return the bytes of a storage from an offset to its end."""
    with unobserved():
        tensor = torch.empty(0, dtype=torch.uint8, device=cpp_place(storage))
        return tensor.set_(storage, offset, (storage.nbytes() - offset,), (1,))


def install(patches: Patches, addresses: Addresses) -> None:
    """Let a run record the addresses that its program reads."""

    def data_ptr(self: Tensor) -> int:
        return addresses.of(self)

    def storage_ptr(self: torch.UntypedStorage) -> int:
        return addresses.of_storage(self)

    patches.set(Tensor, "data_ptr", data_ptr)
    patches.set(torch.UntypedStorage, "data_ptr", storage_ptr)
