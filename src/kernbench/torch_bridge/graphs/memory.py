"""The memory of a captured graph: the program's tensors, and temporaries of replays.

A graph refers to memory, not to tensors: results that the program drops during the capture release
their simulated memory to the graph's pool, as on a device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map

from kernbench.torch_bridge.base.refusals import CaptureError
from kernbench.torch_bridge.graphs.pools import Address, share
from kernbench.torch_bridge.memory import PrivatePool
from kernbench.torch_bridge.placement.residence import Residence, own_set, storage_of
from kernbench.torch_bridge.processes.process import Process, current


@dataclass(slots=True, eq=False)
class Slot:
    """One allocation that captured operations use."""

    weak: StorageWeakRef | None
    """Keeps the storage's address from being reused, but does not keep its memory.

    None if the storage has got other memory since.
    """
    place: torch.device | None
    """The simulated device; None for memory of the host."""
    size_bytes: int
    made_as: torch.dtype | None = None
    """The dtype of the result that the capture allocated it for; None if it is older."""
    storage: Any = None
    """Keeps the memory alive: older memory from its first use, other from the capture's end."""
    before: Any = None
    """Its bytes before the capture wrote it."""
    first: int = 0
    last: int = 0
    """Positions of the first and the last step that use it."""
    branches: set[int] = field(default_factory=set)
    """The branches of the graph that use it."""
    address: Address | None = None
    """Where the capture has allocated it, if it may give that out again when it is dropped."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor's layout in the memory of a slot."""

    slot: Slot
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_conj: bool
    is_neg: bool


class GraphMemory:
    """All memory of one graph."""

    def __init__(self, branch: Callable[[], int]) -> None:
        self._branch = branch
        """Returns the branch that is captured."""
        self._slots: dict[int, Slot] = {}
        """Slots by the address of the storage that holds the memory now."""
        self._all: list[Slot] = []
        self._tensors: dict[Ref, Tensor] = {}

    def ref(self, tensor: Tensor, step: int, *, is_result: bool = False) -> Ref:
        """Return a reference to a tensor's memory: the capture's, if first seen in a result."""
        storage = _storage_of(tensor)
        slot = self._slots.get(storage._cdata)
        if slot is None:
            residence: Residence | None = getattr(storage, "_kernbench", None)
            place = None if residence is None else residence.device
            slot = Slot(StorageWeakRef(storage), place, 0, first=step)
            if is_result:
                slot.made_as = tensor.dtype
                block = None if residence is None else residence.block
                if block is not None:
                    slot.address = (block.owner, block.address, block.size)
            else:
                slot.storage = storage
            self._keep(storage, slot)
        slot.last = step
        slot.branches.add(self._branch())
        slot.size_bytes = max(slot.size_bytes, storage.nbytes())
        return Ref(
            slot,
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _keep(self, storage: Any, slot: Slot) -> None:
        self._slots[storage._cdata] = slot
        self._all.append(slot)

    def give_up(self, storage: Any) -> bool:
        """Record that a storage releases its memory; return whether the capture allocated it."""
        slot = self._slots.get(storage._cdata)
        if slot is None:
            return not storage.nbytes()
        if slot.made_as is not None:
            del self._slots[storage._cdata]
            slot.weak = None
        return slot.made_as is not None

    def get_new(self, storage: Any, step: int) -> None:
        """Record that a storage has memory again, if it has any."""
        if storage.nbytes():
            place = storage._kernbench.device
            slot = Slot(StorageWeakRef(storage), place, storage.nbytes(), torch.uint8)
            slot.first = slot.last = step
            self._keep(storage, slot)

    def add_results(
        self, results: Iterable[Tensor | None], step: int
    ) -> tuple[tuple[int, Ref], ...]:
        """Return the results of a step that have memory of their own, by position."""
        known = set(self._slots)
        return tuple(
            (number, self.ref(tensor, step, is_result=True))
            for number, tensor in enumerate(results)
            if tensor is not None and _storage_of(tensor)._cdata not in known
        )

    def refs(self, values: Any, step: int, bake: Callable[[Tensor], Any]) -> Any:
        """Return nested arguments with references in place of tensors.

        ``bake`` may return a value to use for a tensor instead; None: no.
        """

        def replaced(value: Any) -> Any:
            if isinstance(value, Tensor):
                baked = bake(value)
                return self.ref(value, step) if baked is None else baked
            return value

        return tree_map(replaced, values)

    def keep_bytes(self, tensors: Iterable[Tensor], step: int) -> None:
        """Save the bytes of tensors that a captured operation is about to write."""
        for tensor in tensors:
            slot = self.ref(tensor, step).slot
            if slot.made_as is None and slot.before is None:
                slot.before = slot.storage.clone()

    def hold(self, tensor: Tensor) -> None:
        """Record that a stream uses a tensor: its memory is given out after the capture."""
        slot = self._slots.get(_storage_of(tensor)._cdata)
        if slot is not None:
            slot.address = None

    def end_capture(self, process: Process, pool: PrivatePool, num_steps: int) -> None:
        """Restore the program's bytes, and clear what the capture made: nothing has run yet."""
        for slot in self._all:
            if slot.before is not None:
                slot.storage.copy_(slot.before)
                slot.before = None
            elif slot.made_as is not None and slot.weak is not None:
                slot.storage = torch.UntypedStorage._new_with_weak_ptr(slot.weak.cdata)
                if slot.storage is not None:
                    _forget(slot.storage, slot.made_as)
        outputs = {id(slot.storage) for slot in self._all if slot.storage is not None}
        self._allocate(num_steps, is_placed=process.order is not None)
        if process.order is not None:
            places = {
                id(slot.storage): (slot.address, slot.storage, id(slot.storage) in outputs)
                for slot in self._all
                if slot.made_as is not None
            }
            share(pool, process.order, places.values())

    def restore(self) -> None:
        """Restore the program's bytes after a failed capture."""
        for slot in self._all:
            if slot.before is not None:
                slot.storage.copy_(slot.before)
        self._slots.clear()
        self._all.clear()

    def _allocate(self, num_steps: int, *, is_placed: bool) -> None:
        """Allocate host memory for temporaries of a replay; steps reuse it one after another.

        A branch reuses what it has used alone, or with ``is_placed`` what has its address: what
        others of that address do is then known.
        """
        begins: list[list[Slot]] = [[] for _ in range(num_steps)]
        ends: list[list[Slot]] = [[] for _ in range(num_steps)]
        for slot in self._all:
            if slot.storage is None:
                begins[slot.first].append(slot)
                ends[slot.last].append(slot)
        free: dict[Any, list[Any]] = {}

        def kept(slot: Slot) -> list[Any]:
            branch = min(slot.branches) if len(slot.branches) == 1 else None
            key: tuple[Any, ...] = (slot.size_bytes, slot.place, branch)
            if is_placed and slot.address is not None:
                key = (slot.size_bytes, slot.address)
            return [] if key[-1] is None else free.setdefault(key, [])

        for starting, ending in zip(begins, ends, strict=True):
            for slot in starting:
                own = kept(slot)
                slot.storage = own.pop() if own else _storage(slot)
            for slot in ending:
                kept(slot).append(slot.storage)

    def give_back(self) -> None:
        """Release the blocks of results that the program has dropped: another graph gets them."""
        used = Counter(id(ref.slot) for ref in self._tensors)
        for slot in self._all:
            residence = getattr(slot.storage, "_kernbench", None)
            if slot.made_as is None or residence is None or residence.block is None:
                continue
            if torch._C._storage_Use_Count(slot.storage._cdata) == 1 + used[id(slot)]:
                residence.block.free()
                residence.block = None

    def tensors(self, values: Any) -> Any:
        """Return nested arguments with tensors in place of references."""

        def replaced(value: Any) -> Any:
            return self.tensor(value) if isinstance(value, Ref) else value

        return tree_map(replaced, values)

    def tensor(self, ref: Ref) -> Tensor:
        """Return the graph's own tensor of a reference, never the program's object."""
        result = self._tensors.get(ref)
        if result is None:
            result = torch.empty(0, dtype=ref.dtype)
            own_set(result, ref.slot.storage, ref.offset, ref.shape, ref.stride)
            result = torch._conj(result) if ref.is_conj else result
            result = torch._neg_view(result) if ref.is_neg else result
            self._tensors[ref] = result
        return result


def _forget(storage: Any, dtype: torch.dtype) -> None:
    """Fill memory with NaN, which no program takes for a result, or 0 for integers."""
    whole = storage.nbytes() // dtype.itemsize * dtype.itemsize
    shown = torch.empty(0, dtype=dtype)
    own_set(shown, storage, 0, (whole // dtype.itemsize,), (1,))
    shown.fill_(torch.nan if dtype.is_floating_point or dtype.is_complex else 0)


def _storage_of(tensor: Tensor) -> Any:
    try:
        return storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        raise CaptureError(
            f"a {tensor.layout} tensor in the capture of a CUDA graph: only strided tensors can be "
            "captured; keep this part out of the graph"
        ) from None


def _storage(slot: Slot) -> Any:
    storage = torch.zeros(slot.size_bytes, dtype=torch.uint8).untyped_storage()
    if slot.place is not None:
        # Launches look up their memory's device there.
        storage._kernbench = Residence(slot.place, current().first_sip + slot.place.index)
    return storage
