"""``torch.distributed.symmetric_memory``: memory that the kernels of all ranks reach (ADR-0032)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernbench.dtypes import DType, as_dtype, int64, uint32
from kernbench.errors import UsageError
from kernbench.runtime_api.front.factories import unwritten
from kernbench.runtime_api.memory.storage import Sharing
from kernbench.runtime_api.memory.views import as_shape, check_sizes, contiguous_strides
from kernbench.runtime_api.tensors.tensor import Tensor

if TYPE_CHECKING:
    from kernbench.runtime_api.front.context import RuntimeContext
    from kernbench.runtime_api.front.groups import ProcessGroup

SIGNAL_PAD_BYTES = 16 << 10


@dataclass(slots=True)
class Meeting:
    """The tensors of the ranks at one rendezvous, by position in the group."""

    tensors: dict[int, Tensor] = field(default_factory=dict)
    pads: dict[int, Tensor] = field(default_factory=dict)
    left: int = 0
    """How many ranks have resumed."""


class SymmetricMemory:
    """The module, also available under torch's name ``torch.distributed._symmetric_memory``.

    Every rank of a group allocates a tensor of the same size and calls :meth:`rendezvous` on it.
    From then on the kernels of each may go to the tensors of all: by their addresses, or with the
    tensors that :meth:`SymmetricTensor.get_buffer` returns as arguments.
    """

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._signal_pad_bytes = SIGNAL_PAD_BYTES
        self._meetings: dict[tuple[ProcessGroup, int], Meeting] = {}

    def empty(self, *size: Any, **options: Any) -> Tensor:
        """Return a tensor that can be shared; takes what ``torch.empty`` takes."""
        tensor = self._context.empty(*size, **options)
        self._share(tensor)
        return tensor

    def is_symm_mem_tensor(self, tensor: Tensor) -> bool:
        """Return whether a tensor was allocated here."""
        return tensor.buffer.symmetric is not None

    def get_signal_pad_size(self) -> int:
        """Return the bytes of signals that each rank gets at a rendezvous."""
        return self._signal_pad_bytes

    def set_signal_pad_size(self, size_bytes: int) -> None:
        """Set the bytes of signals of later rendezvous.

        Raises:
            UsageError: There is no room for a signal.
        """
        if not isinstance(size_bytes, int) or size_bytes < uint32.itemsize:
            raise UsageError(
                f"set_signal_pad_size takes {uint32.itemsize} bytes or more, but got {size_bytes!r}"
            )
        self._signal_pad_bytes = size_bytes

    def rendezvous(self, tensor: Tensor, group: ProcessGroup | None = None) -> SymmetricTensor:
        """Share the memory behind a tensor; every rank of the group calls it and waits for all.

        Raises:
            UsageError: It was not allocated by :meth:`empty`, the ranks' sizes differ, or not all
                ranks run.
        """
        context = self._context
        if context.run.folding is not None:
            raise UsageError(
                "the program cannot be folded: it shares memory with ranks that do not run "
                "(symmetric_memory.rendezvous); leave --fold out"
            )
        members = context.distributed.resolve(group)
        state = context.run.rank_state
        position = members.position(state.rank)
        self._check(tensor)
        key = members, state.call_counts.get(members, 0)
        meeting = self._meetings.setdefault(key, Meeting())
        meeting.tensors[position] = tensor
        meeting.pads[position] = self._pad(tensor)
        arrived = context.distributed.meet("rendezvous", members, async_op=True)
        assert arrived is not None
        context.run.wait(arrived)
        meeting.left += 1
        if meeting.left == members.size():
            del self._meetings[key]
        _check_sizes(meeting, members)
        sips = {tensor.sip_id for tensor in meeting.tensors.values()}
        for item in (*meeting.tensors.values(), *meeting.pads.values()):
            item.buffer.symmetric.sips |= sips
        context.run.has_symmetric = True
        return SymmetricTensor(context, members, position, meeting)

    def _check(self, tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or tensor.buffer.symmetric is None:
            what = tensor.label if isinstance(tensor, Tensor) else repr(tensor)
            raise UsageError(
                f"rendezvous: {what} is not symmetric memory; allocate it with "
                "torch.distributed.symmetric_memory.empty"
            )
        state = self._context.run.rank_state
        if tensor.sip_id != state.sip_id:
            raise UsageError(
                f"rendezvous: {tensor.label} lies on SIP {tensor.sip_id}, but rank {state.rank} is "
                f"bound to SIP {state.sip_id}; each rank shares memory of its own"
            )

    def _pad(self, tensor: Tensor) -> Tensor:
        """Return zeros for signals; they need no command, as no other rank knows of them yet."""
        count = self._signal_pad_bytes // uint32.itemsize
        pad = unwritten(self._context, (count,), uint32, name=f"signals of {tensor.name}")
        self._share(pad)
        return pad

    def _share(self, tensor: Tensor) -> None:
        context = self._context
        tensor.buffer.symmetric = Sharing(context.run.rank_state.rank)
        if context.run.sanitizer is not None and context.run.has_data:
            context.run.sanitizer.share(tensor.buffer)


class SymmetricTensor:
    """The memory of all ranks of a group, as a rendezvous gives it to one of them.

    Ranks are counted in the group.
    """

    def __init__(
        self, context: RuntimeContext, group: ProcessGroup, rank: int, meeting: Meeting
    ) -> None:
        self._context = context
        self._group = group
        self._tensors = [meeting.tensors[index] for index in range(group.size())]
        self._pads = [meeting.pads[index] for index in range(group.size())]
        self.rank = rank
        self.world_size = group.size()
        self.buffer_size: int = self._tensors[rank].buffer.size_bytes
        """Bytes of one rank's memory."""
        self.signal_pad_size: int = self._pads[rank].nbytes
        self.buffer_ptrs = [tensor.buffer.address for tensor in self._tensors]
        """The address of every rank's memory."""
        self.signal_pad_ptrs = [pad.data_ptr() for pad in self._pads]
        self.buffer_ptrs_dev = self._table("addresses", self.buffer_ptrs)
        """The same on the device: an int64 per rank, which a kernel casts to a pointer."""
        self.signal_pad_ptrs_dev = self._table("signal addresses", self.signal_pad_ptrs)

    def __repr__(self) -> str:
        return (
            f"SymmetricTensor({self._tensors[self.rank].name}, rank {self.rank} of "
            f"{self.world_size}, {self.buffer_size} bytes each)"
        )

    @property
    def offset(self) -> int:
        """Bytes from the start of the rank's memory to the tensor that it brought."""
        tensor = self._tensors[self.rank]
        return tensor.data_ptr() - tensor.buffer.address

    def get_buffer(self, rank: int, sizes: Any, dtype: Any, storage_offset: int = 0) -> Tensor:
        """Return a rank's memory from ``storage_offset`` elements on, as a tensor.

        Raises:
            UsageError: There is no such rank, or not as much memory.
        """
        return self._view("get_buffer", self._tensors, rank, sizes, as_dtype(dtype), storage_offset)

    def get_signal_pad(
        self, rank: int, sizes: Any = None, dtype: Any = uint32, storage_offset: int = 0
    ) -> Tensor:
        """Return the signals of a rank, by default all of them; zeros to begin with.

        Raises:
            UsageError: There is no such rank, or not as much memory.
        """
        element = as_dtype(dtype)
        if sizes is None:
            sizes = (self.signal_pad_size // element.itemsize - storage_offset,)
        return self._view("get_signal_pad", self._pads, rank, sizes, element, storage_offset)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Make what is enqueued later on the ranks' streams wait for what is on all of them now.

        The hosts go on. Barriers of a group meet in the order of the calls, whatever the channel.
        """
        work = self._context.distributed.meet(
            "barrier of symmetric memory", self._group, async_op=True
        )
        assert work is not None
        self._context.run.current_stream().wait_handle(work)

    def _table(self, what: str, addresses: Sequence[int]) -> Tensor:
        name = f"{what} of {self._tensors[self.rank].name}"
        return unwritten(self._context, (len(addresses),), int64, name=name, values=addresses)

    def _view(
        self, what: str, of: list[Tensor], rank: int, sizes: Any, dtype: DType, offset: int
    ) -> Tensor:
        if not isinstance(rank, int) or not 0 <= rank < self.world_size:
            raise UsageError(
                f"{what}: rank must be from 0 to {self.world_size - 1}, but got {rank!r}"
            )
        shape = check_sizes(as_shape((sizes,)))
        tensor = of[rank]
        end = (offset + math.prod(shape)) * dtype.itemsize
        if offset < 0 or end > tensor.buffer.size_bytes:
            raise UsageError(
                f"{what}: {shape} {dtype.name} from element {offset} on ends at byte {end}, but "
                f"{tensor.name} of rank {rank} is {tensor.buffer.size_bytes} bytes"
            )
        strides = contiguous_strides(shape)
        name = f"{tensor.name} of rank {rank}"
        return Tensor(self._context, tensor.storage, dtype, offset, shape, strides, tensor.dp, name)


def _check_sizes(meeting: Meeting, members: ProcessGroup) -> None:
    sizes = {
        members.ranks[position]: tensor.buffer.size_bytes
        for position, tensor in sorted(meeting.tensors.items())
    }
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} bytes on rank {rank}" for rank, size in sizes.items())
        raise UsageError(
            f"rendezvous: all ranks must bring the same amount of memory, but got {listed}"
        )
