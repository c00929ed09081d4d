"""``torch.distributed._symmetric_memory``: memory that kernels of all ranks reach (ADR-0230).

What C++ does there for a GPU is done here on the runtime's mechanism (ADR-0032): a rendezvous
exchanges buffers, and Triton kernels that go to those of others run in step with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed._symmetric_memory as symmetric
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch._C import _distributed_c10d as native

from kernbench.errors import UsageError
from kernbench.runtime_api import Sharing
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.c10d import data
from kernbench.torch_bridge.c10d.calls import Call, post_pair, signature
from kernbench.torch_bridge.c10d.process_group import SimulatedGroup
from kernbench.torch_bridge.dispatch.addresses import buffer_of_storage, host_address
from kernbench.torch_bridge.placement.names import unobserved, with_index
from kernbench.torch_bridge.placement.residence import (
    Residence,
    cpp_place,
    residence_of,
    storage_of,
    storage_or_none,
)
from kernbench.torch_bridge.processes.process import Process, current

_PAD_BYTES = 16 << 10
_ELEMENT_BYTES = 4
"""The size of a signal, and of what is written by the stream itself."""


class OwnSharing:
    """What a process has of symmetric memory besides tensors."""

    def __init__(self) -> None:
        self.pad_bytes = _PAD_BYTES
        self.workspaces: dict[str, Tensor] = {}
        self.known: dict[tuple[int, str], PeerMemory] = {}
        """What was exchanged, by address and group: a second rendezvous gives the same."""


class _PadSize(type):
    """Lets ``signal_pad_size`` of the class be the calling process's."""

    @property
    def signal_pad_size(cls) -> int:
        return current().part(OwnSharing).pad_bytes

    @signal_pad_size.setter
    def signal_pad_size(cls, size_bytes: int) -> None:
        if not isinstance(size_bytes, int) or size_bytes < _ELEMENT_BYTES:
            raise UsageError(
                f"set_signal_pad_size takes {_ELEMENT_BYTES} bytes or more, but got {size_bytes!r}"
            )
        current().part(OwnSharing).pad_bytes = size_bytes


class PeerMemory(metaclass=_PadSize):
    """``_SymmetricMemory``: the memory of all ranks of a group, as one of them sees it.

    Ranks are counted in the group.
    """

    multicast_ptr = 0
    """No address of a switch: kernels that use one need inline assembly."""

    def __init__(self, group: SimulatedGroup, rank: int, parts: dict[int, tuple[Tensor, Tensor]]):
        self._group = group
        self.rank = rank
        self.world_size = len(parts)
        self._tensors = [parts[index][0] for index in range(self.world_size)]
        self._pads = [parts[index][1] for index in range(self.world_size)]
        own = self._tensors[rank]
        self.device = own.device
        self.offset = own.storage_offset() * own.element_size()
        self.buffer_size: int = storage_of(own).nbytes()
        self.buffer_ptrs = [_address(tensor) for tensor in self._tensors]
        self.signal_pad_ptrs = [_address(pad) for pad in self._pads]
        self._tables = [
            _table(numbers, self.device) for numbers in (self.buffer_ptrs, self.signal_pad_ptrs)
        ]
        self.buffer_ptrs_dev, self.signal_pad_ptrs_dev = (item.data_ptr() for item in self._tables)

    @property
    def signal_pad_size(self) -> int:
        return int(storage_of(self._pads[self.rank]).nbytes())

    def __repr__(self) -> str:
        return (
            f"<_SymmetricMemory rank {self.rank} of {self.world_size}, {self.buffer_size} bytes "
            f"each, of group {self._group.group_name}>"
        )

    @staticmethod
    def set_group_info(*_: Any) -> None:
        """Accept it: groups are known."""

    @staticmethod
    def has_multicast_support(device_type: Any, device_idx: int) -> bool:
        return has_multicast(current())

    @staticmethod
    def set_backend(name: str) -> None:
        """Accept it: there is one kind of memory."""

    @staticmethod
    def get_backend(device: Any) -> str:
        return "CUDA"

    @staticmethod
    def get_mempool_allocator(device: Any) -> Any:
        raise UnsupportedTorchError(
            "torch.distributed._symmetric_memory.get_mempool_allocator: the allocator's model has "
            "no pools of a program's; allocate with torch.distributed._symmetric_memory.empty"
        )

    @staticmethod
    def is_symm_mem_tensor(tensor: Tensor) -> bool:
        return _buffer_of(tensor) is not None

    @staticmethod
    def empty_strided_p2p(
        size: Any,
        stride: Any,
        dtype: Any,
        device: Any,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> Tensor:
        """Return a tensor that can be shared, on the calling rank's device."""
        process = current()
        _refuse_kinds_of_runs(process)
        p2p = torch.empty_strided(
            size, stride, dtype=dtype, device=with_index(torch.device(device))
        )
        storage, residence = storage_of(p2p), residence_of(p2p)
        assert residence is not None
        name = f"symmetric memory of rank {process.rank}, {tuple(p2p.shape)}"
        buffer = buffer_of_storage(storage, residence.sip_id, name)
        buffer.symmetric = Sharing(process.rank)
        storage._kernbench_shared = buffer
        return p2p

    @staticmethod
    def rendezvous(tensor: Tensor, group_name: str | None = None) -> PeerMemory:
        """Exchange memory with the ranks of a group, all of which call it and wait for all."""
        process = current()
        group = c10d._world.default_pg if group_name is None else group_of(group_name)
        if _buffer_of(tensor) is None:
            raise UsageError(
                f"rendezvous: the tensor of shape {tuple(tensor.shape)} is not symmetric memory; "
                "allocate it with torch.distributed._symmetric_memory.empty"
            )
        members, own = group.members(), process.part(OwnSharing)
        key = _address(tensor), group.group_name
        known = own.known.get(key)
        if (
            known is not None
            and storage_of(known._tensors[known.rank])._cdata == storage_of(tensor)._cdata
        ):
            return known
        position = members.position(process.state.rank)
        at = members, process.state.call_counts.get(members, 0)
        parts = process.session.rendezvous.setdefault(at, {})
        parts[position] = tensor, _pad(process, own.pad_bytes, tensor.device)
        asked = replace(signature("barrier", [], 0), called="rendezvous")
        group._post(Call(asked, [], [], data.nothing)).wait_on_host()
        process.session.rendezvous.pop(at, None)
        sizes = {members.ranks[part]: storage_of(parts[part][0]).nbytes() for part in sorted(parts)}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{size} bytes on rank {rank}" for rank, size in sizes.items())
            raise UsageError(
                f"rendezvous: all ranks must bring the same amount of memory, but got {listed}"
            )
        buffers = [_buffer_of(item) for pair in parts.values() for item in pair]
        sips = {buffer.sip_id for buffer in buffers}
        for buffer in buffers:
            buffer.symmetric.sips |= sips
        process.session.run.has_symmetric = True
        peer_memory = own.known[key] = PeerMemory(group, position, parts)
        return peer_memory

    def get_buffer(
        self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int | None = 0
    ) -> Tensor:
        """Return a rank's memory from ``storage_offset`` elements on, as a tensor."""
        return self._view("get_buffer", self._tensors, rank, sizes, dtype, storage_offset or 0)

    def get_remote_tensor(self, peer: int, sizes: Any, dtype: torch.dtype) -> Tensor:
        """Return what a rank has where this one has its tensor."""
        return self.get_buffer(peer, sizes, dtype, self.offset // dtype.itemsize)

    def get_signal_pad(
        self,
        rank: int,
        sizes: Any = (),
        dtype: torch.dtype | None = None,
        storage_offset: int | None = 0,
    ) -> Tensor:
        """Return the signals of a rank, by default all of them; zeros to begin with."""
        element = torch.uint32 if dtype is None else dtype
        offset = storage_offset or 0
        shape = sizes or (self.signal_pad_size // element.itemsize - offset,)
        return self._view("get_signal_pad", self._pads, rank, shape, element, offset)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Let later work of the rank's stream wait for what is on all ranks' streams so far."""
        asked = replace(signature("barrier", [], 0), called="barrier of symmetric memory")
        self._group._post(Call(asked, [], [], data.nothing, follows_stream=True)).wait()

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Signal a rank, behind what is on the stream."""
        self._signal("put_signal", dst_rank, channel)._take_line()

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Let later work of the stream wait for a signal of a rank."""
        self._signal("wait_signal", src_rank, channel).wait()

    @staticmethod
    def memset32(tensor: Tensor, offset: int, val: int, count: int = 1) -> Tensor:
        """Write ``count`` elements of 32 bits, behind what is on the stream."""
        if tensor.element_size() != _ELEMENT_BYTES or not 0 <= offset <= tensor.numel() - count:
            raise UsageError(
                f"memset32 writes elements of {_ELEMENT_BYTES} bytes in a tensor, but got {count} "
                f"from {offset} on of {tensor.numel()} of {tensor.dtype}"
            )
        tensor.view(-1).view(torch.int32)[offset : offset + count].fill_(val)
        current().session.run.signals.recorded()
        return tensor

    @staticmethod
    def stream_write_value32(tensor: Tensor, offset: int, val: int) -> Tensor:
        """Write one element of 32 bits, behind what is on the stream."""
        return PeerMemory.memset32(tensor, offset, val)

    def _signal(self, side: str, peer: int, channel: int) -> Any:
        ranks = self._group.members().ranks
        self._check_rank(side, peer)
        mine, theirs = ranks[self.rank], ranks[peer]
        ends = (mine, theirs) if side == "put_signal" else (theirs, mine)
        called = f"{side} {'to' if side == 'put_signal' else 'from'} rank {theirs}"
        asked = replace(signature("send_recv", [], 0), called="signal")
        call = Call(asked, [], [], data.nothing, called=called, follows_stream=True)
        # Tags of messages are numbers: these are of another kind.
        tag: Any = ("signal", channel)
        return post_pair(self._group.members(), ends, tag, call, self._group._serves_host())

    def _check_rank(self, what: str, rank: int) -> None:
        if not isinstance(rank, int) or not 0 <= rank < self.world_size:
            raise UsageError(
                f"{what}: rank must be from 0 to {self.world_size - 1}, but got {rank!r}"
            )

    def _view(
        self, what: str, of: list[Tensor], rank: int, sizes: Any, dtype: torch.dtype, offset: int
    ) -> Tensor:
        self._check_rank(what, rank)
        shape = tuple(sizes)
        storage = storage_of(of[rank])
        end = (offset + math.prod(shape)) * dtype.itemsize
        if offset < 0 or end > storage.nbytes():
            raise UsageError(
                f"{what}: {shape} {dtype} from element {offset} on ends at byte {end}, but the "
                f"memory of rank {rank} is {storage.nbytes()} bytes"
            )
        if rank != self.rank:
            current().session.reads_peers = True
            storage = _shown_here(storage, self.device)
        with unobserved():
            tensor = torch.empty(0, dtype=dtype)
            return tensor.set_(storage, offset, shape, torch.empty(shape, device="meta").stride())


def _shown_here(storage: Any, device: torch.device) -> Any:
    """Return another storage on a rank's memory, which this rank's device maps."""
    shown_here: Any = torch._C._construct_storage_from_data_pointer(
        host_address(storage), cpp_place(storage), storage.nbytes()
    )
    shown_here._kernbench = Residence(device, current().first_sip + device.index)
    shown_here._kernbench_shared, shown_here._kernbench_owner = storage._kernbench_shared, storage
    return shown_here


def _buffer_of(tensor: Tensor) -> Any:
    return getattr(storage_or_none(tensor), "_kernbench_shared", None)


def _address(tensor: Tensor) -> int:
    """Return where the memory behind a tensor begins, and let kernels find it there."""
    return tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()


def _table(addresses: Sequence[int], device: torch.device) -> Tensor:
    table = torch.empty(len(addresses), dtype=torch.int64, device=device)
    with unobserved():
        table.copy_(torch.tensor(addresses, dtype=torch.int64))
    return table


def _pad(process: Process, size_bytes: int, device: torch.device) -> Tensor:
    """Return zeros for signals; they need no command, as no other rank knows of them yet."""
    count = -(-size_bytes // _ELEMENT_BYTES)
    pad = PeerMemory.empty_strided_p2p((count,), (1,), torch.int32, device)
    with unobserved():
        pad.zero_()
    _buffer_of(pad).name = f"signals of rank {process.rank}"
    return pad


def group_of(name: str) -> SimulatedGroup:
    group = c10d._resolve_process_group(name)
    assert isinstance(group, SimulatedGroup)
    return group


def has_multicast(process: Process) -> bool:
    """Return whether the machine's switch adds and copies what it passes on."""
    collectives = process.session.run.machine.spec.collectives
    return collectives is not None and collectives.in_switch is not None


def _refuse_kinds_of_runs(process: Process) -> None:
    run = process.session.run
    if not run.has_data:
        raise UnsupportedTorchError(
            "torch.distributed._symmetric_memory in a run without data: what kernels that "
            "communicate do depends on numbers; leave --no-data out"
        )
    if run.folding is not None:
        raise UsageError(
            "the program cannot be folded: it shares memory with ranks that do not run "
            "(torch.distributed._symmetric_memory); leave --fold out"
        )


def _workspace(group_name: str, min_size: int) -> PeerMemory:
    """``get_symm_mem_workspace``: memory of a group, which grows where more is asked for."""
    own = current().part(OwnSharing)
    tensor = own.workspaces.get(group_name)
    size = 0 if tensor is None else tensor.numel()
    if tensor is None or size < min_size:
        device = torch.device("cuda", torch.cuda.current_device())
        tensor = PeerMemory.empty_strided_p2p((min_size,), (1,), torch.uint8, device)
        own.workspaces[group_name] = tensor
    return PeerMemory.rendezvous(tensor, group_name)


def install(patches: Patches) -> None:
    """Let PyTorch's own module call this instead of C++."""
    for owner in (native, symmetric):
        patches.set(owner, "_SymmetricMemory", PeerMemory)
    patches.set_all(
        symmetric,
        _should_use_implicit_mempool=lambda: False,
        enable_symm_mem_for_group=lambda group_name: None,
        get_symm_mem_workspace=_workspace,
    )
