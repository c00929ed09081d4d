"""Under the sanitizer: what each operation of PyTorch touches, and what is uninitialized.

An operation is one of the stream that it is enqueued on, or of the host if it works on pinned
memory there (ADR-0228).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from kernbench.clock import Stream
from kernbench.memory import POISON, Buffer
from kernbench.sanitizer import TouchKind
from kernbench.torch_bridge.base.operations import Operation, describe
from kernbench.torch_bridge.dispatch.operands import leaves, used_tensors
from kernbench.torch_bridge.ordering.order import OperationClock, ProcessOrder
from kernbench.torch_bridge.placement.contents import Contents, contents_of
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.placement.residence import residence_of, storage_of
from kernbench.torch_bridge.placement.touched import (
    begin_unwritten,
    contents_of_tensor,
    flat_storage,
    mark_unwritten,
    mark_written,
    refuse_unwritten,
    set_unwritten,
    touch_tensor,
    unwritten_byte,
    unwritten_elements,
)
from kernbench.torch_bridge.processes.process import Process

_HERE = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_MODULES = f"{_TORCH}/nn/modules"
_FILLING = frozenset(
    {
        "fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
        "geometric_", "cauchy_", "log_normal_", "_foreach_copy_", "_foreach_zero_",
    }
)  # fmt: skip
"""Operations that write what they change without reading it."""
_NOT_FOLLOWED = frozenset(
    {"all_gather_copy_in", "set_", "resize_", "split_with_sizes_copy", "chunk_cat", "_chunk_cat"}
)
_SCATTERING = _NOT_FOLLOWED | {
    "index_put_", "_index_put_impl_", "index_copy_", "index_fill_", "scatter_", "masked_fill_",
    "masked_scatter_", "put_",
}  # fmt: skip
"""The same, but which bytes they write follows from data, or is not followed."""
_NOT_READING = _FILLING | _SCATTERING
_FOLLOWED = frozenset(
    {
        "clone", "copy_", "_to_copy", "cat", "stack", "index", "_unsafe_index", "index_select",
        "gather", "embedding", "take", "repeat", "roll", "flip", "constant_pad_nd", "where",
        "masked_fill", "masked_fill_", "masked_select", "index_put", "index_put_", "index_copy",
        "index_copy_", "slice_scatter", "select_scatter", "scatter", "scatter_", "slice_backward",
        "select_backward", "unfold", "tril", "triu", "_index_put_impl_", "_pin_memory",
        "contiguous", "_reshape_copy", "view_copy", "_unsafe_index_put", "index_fill_",
        "masked_scatter_", "put_", "repeat_interleave",
    }
)  # fmt: skip
"""Operations of which it is followed, element by element, where what they read and write goes."""
_MOVING = _FOLLOWED | _NOT_FOLLOWED | {"_foreach_copy_", "equal"}
"""Operations that only move or select what they read: nothing is computed with it."""
_VALUES = frozenset(
    {
        "self", "src", "source", "value", "values", "other", "tensors", "tensor", "weight", "grad",
        "grad_output", "input",
    }
)  # fmt: skip
"""Names of their arguments that are moved; others say where from and where to."""
_OF_PLACE = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"})


class Touching:
    """Takes note of what the operations of a process touch."""

    def __init__(self, process: Process) -> None:
        assert process.order is not None
        self._process = process
        self._order: ProcessOrder = process.order
        self._operations: dict[Any, Operation] = {}

    def device(
        self, operation: Operation, args: Any, kwargs: dict[str, Any], result: Any, sip_id: int
    ) -> None:
        """Take note of an operation that is about to be enqueued on a device's current stream.

        Raises:
            DataRaceError: It is unordered with another, both touch a byte, and one writes it.
            UninitializedReadError: It computes with what nothing has written.
        """
        if operation.is_free:
            if operation.makes_empty:
                self._begin(result)
            return
        queue = self._process.host.queue_of(sip_id)
        self._order.note_forward(queue)
        if hasattr(queue, "stands_for"):
            # What is captured touches memory when it is replayed.
            return
        self._peer(args, queue, sip_id)
        self.note(operation, args, kwargs, result, self._order.on_stream(queue))
        self._peer(args, queue, sip_id)

    def host(self, operation: Operation, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Take note of an operation of the host, if it touches pinned memory.

        Raises:
            DataRaceError: As :meth:`device`.
        """
        used = leaves((args, list(kwargs.values())))
        # One that is followed is pinned, or got what nothing has written.
        if not operation.is_free and any(
            getattr(storage, "_kernbench_pinned", False)
            or getattr(storage, "_kernbench_contents", None) is not None
            for storage in map(flat_storage, used)
        ):
            self.note(operation, args, kwargs, result, self._order.on_host())

    def replayed(self, func: Any, args: Any, kwargs: Any, results: Any, queue: Stream) -> None:
        """Take note of an operation in a graph's replay on a stream.

        Raises:
            DataRaceError, UninitializedReadError: As :meth:`device`.
        """
        operation = self._operations.get(func)
        if operation is None:
            operation = self._operations[func] = describe(func)
        self.note(operation, args, kwargs, results, self._order.on_stream(queue))

    def note(
        self,
        operation: Operation,
        args: Any,
        kwargs: dict[str, Any],
        result: Any,
        clock: OperationClock,
    ) -> None:
        """Take note of what an operation reads, and of what it writes.

        Raises:
            DataRaceError, UninitializedReadError: As :meth:`device`.
        """
        name = operation.name
        kind = name.rpartition(".")[2]
        tensors = [
            pair
            for pair in used_tensors(operation, args, kwargs)
            if flat_storage(pair[0]) is not None
        ]
        written = [item for item, writes in tensors if writes]
        known = self._order.finds_unwritten and kind not in _MOVING and not operation.is_custom
        # With a ``beta`` of 0, what products are added to is ignored, NaN as well.
        read_from = tensors[kwargs.get("beta") == 0 :]
        if kind.endswith("_like") or kind.startswith("new_"):
            # It makes a tensor by the shape of another, whatever is in that.
            read_from = []
        read = [
            (item, contents)
            for item, writes in read_from
            if not (writes and kind in _NOT_READING)
            for contents in (contents_of_tensor(self._order, item),)
            if contents is not None
        ]
        if known:
            out = set(map(id, leaves(list(map(kwargs.get, operation.written_names)))))
            for item, contents in read:
                if contents.written is not None and id(item) not in out:
                    refuse_unwritten(operation.name, item, contents, clock)
        mine = {id(entry) for entry in written}
        for entry, contents in read:
            if id(entry) not in mine:
                touch_tensor(contents, entry, TouchKind.READ, clock, name)
        storages = {storage_of(element)._cdata for element, _ in read}
        fresh = [(leaf, flat_storage(leaf)) for leaf in leaves(result)]
        changed = written + [
            leaf
            for leaf, storage in fresh
            if storage is not None and storage._cdata not in storages
        ]
        flags = None
        if self._order.finds_unwritten and kind in _FOLLOWED and not operation.is_custom:
            flags = self._unwritten(operation, args, kwargs, [item for item, _ in tensors], clock)
        is_wide = flags is None and (kind in _SCATTERING or operation.is_custom)
        for element in changed:
            target = self._contents(element, flags is not None and bool(flags.any()))
            if target is None:
                continue
            touch_tensor(target, element, TouchKind.WRITE, clock, name)
            if flags is not None and flags.shape == element.shape:
                set_unwritten(target, element, flags)
            else:
                mark_written(target, element, wholly=is_wide)

    def collective(
        self,
        op: str,
        inputs: Iterable[Tensor],
        outputs: Iterable[Tensor],
        clock: OperationClock,
        *,
        computes: bool,
    ) -> None:
        """Take note of what a rank's part in a collective touches; ``computes``: it reduces.

        Raises:
            DataRaceError: As :meth:`device`.
        """
        order, writes, is_lost = self._order, {id(output) for output in outputs}, False
        for item in inputs:
            contents = contents_of_tensor(order, item)
            if contents is not None:
                with unobserved():
                    is_lost |= computes and unwritten_byte(contents, item) is not None
                if id(item) not in writes:
                    touch_tensor(contents, item, TouchKind.READ, clock, op)
        for output in outputs:
            contents = contents_of_tensor(order, output)
            if contents is not None:
                touch_tensor(contents, output, TouchKind.WRITE, clock, op)
                (mark_unwritten if is_lost else mark_written)(contents, output)

    def _unwritten(
        self,
        operation: Operation,
        args: Any,
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        clock: OperationClock,
    ) -> Tensor | None:
        """Return which elements of an operation's result are unwritten; None if none of all can be.

        It moves whether an element is unwritten as it moves the element.

        Raises:
            UninitializedReadError: It decides by what nothing has written.
        """
        known = [contents_of_tensor(self._order, tensor) for tensor in tensors]
        if all(contents is None or contents.written is None for contents in known):
            return None
        namespace, name, overload = operation.full_name.split(".")
        func = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        names = (argument.name for argument in func._schema.arguments)
        operands = dict(zip(names, args, strict=False)) | kwargs
        with unobserved(), torch.no_grad():
            for name, value in operands.items():
                is_written = name in operation.written_names
                if name in _VALUES or is_written:
                    operands[name] = self._flags(value, is_written)
                    continue
                for leaf in leaves(value):
                    contents = contents_of_tensor(self._order, leaf)
                    if contents is not None:
                        refuse_unwritten(operation.name, leaf, contents, clock)
            chosen = {key: value for key, value in operands.items() if key not in _OF_PLACE}
            try:
                result: Tensor = func(**chosen)
            except (NotImplementedError, RuntimeError):  # It adds, or takes no bool.
                return None
        return result

    def _flags(self, value: Any, is_written: bool) -> Any:
        """Return for each element of tensors whether it is unwritten; what is no tensor is not."""
        if isinstance(value, (list, tuple)):
            return [self._flags(item, is_written) for item in value]
        if not isinstance(value, Tensor):
            return None if value is None else False
        contents = contents_of_tensor(self._order, value)
        if contents is None:
            return torch.zeros(value.shape, dtype=torch.bool)
        return unwritten_elements(contents, value, is_written=is_written)

    def _contents(self, tensor: Tensor, is_followed: bool) -> Contents | None:
        """Return what is known of a result's memory, the host's too if some of it is unwritten."""
        contents = contents_of_tensor(self._order, tensor)
        if contents is None and is_followed and residence_of(tensor) is None:
            contents = contents_of(self._order, storage_of(tensor), is_pinned=True)
        return contents

    def _begin(self, result: Any) -> None:
        """Fill a fresh tensor's memory with :data:`POISON`: nothing of it is written."""
        residence = residence_of(result) if isinstance(result, Tensor) else None
        if residence is None or _is_of_pytorch():
            return
        storage = result.untyped_storage()
        with unobserved():
            storage.fill_(POISON)
        contents = contents_of(self._order, storage)
        if contents is not None:
            begin_unwritten(contents, storage)

    def _peer(self, args: Any, queue: Stream, sip_id: int) -> None:
        """Let a copy's streams wait for each other: a copy between devices follows both."""
        for arg in args[:2]:
            residence = residence_of(arg) if isinstance(arg, Tensor) else None
            if residence is not None and residence.sip_id != sip_id:
                self._order.meet(queue, self._process.host.queue_of(residence.sip_id))


def count_writes(order: ProcessOrder, tensor: Tensor, buffer: Buffer) -> None:
    """Let a kernel's launch see which bytes are uninitialized, and track what it touches."""
    contents = contents_of_tensor(order, tensor)
    if contents is None:
        return
    if not contents.is_shared:
        buffer.touches = contents.touches
    written = contents.written
    if written is None:
        return
    if len(written) != len(buffer.bytes) or (buffer.bytes[written == 0] != POISON).any():
        # What the bridge itself computes is not observed.
        contents.written = None
        return
    buffer.written = written


def _is_of_pytorch() -> bool:
    """Return whether PyTorch's own Python leaves memory empty, other than modules do (to_empty).

    It tries shapes with such tensors, and warms up for captures: their numbers do not matter.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    file = "" if frame is None else frame.f_code.co_filename
    return file.startswith(_TORCH) and not file.startswith(_MODULES)
