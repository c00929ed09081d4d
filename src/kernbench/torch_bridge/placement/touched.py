"""Touches of PyTorch's tensors, and which of their bytes are unwritten, under the sanitizer.

Data is computed at once, so a host that does not wait for a copy gets what a device may not have
copied yet. Without the sanitizer the report says so where simulated time shows it (ADR-0228).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernbench.checks import Allowed, remedy
from kernbench.clock import StreamCommand, user_site
from kernbench.errors import UninitializedReadError
from kernbench.memory import POISON
from kernbench.sanitizer import Touch, TouchKind, TouchPart, strided_spans
from kernbench.torch_bridge.ordering.order import OperationClock, ProcessOrder
from kernbench.torch_bridge.placement.call_keys import is_meta
from kernbench.torch_bridge.placement.contents import Contents, contents_of
from kernbench.torch_bridge.placement.in_use import span_of
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.placement.residence import own_set, storage_of, storage_or_none
from kernbench.torch_bridge.processes.process import Process


def flat_storage(tensor: Tensor) -> Any:
    """Return the storage of a tensor; None also for one of several shapes, which has no layout."""
    return None if tensor.is_nested else storage_or_none(tensor)


def contents_of_tensor(order: ProcessOrder, tensor: Tensor) -> Contents | None:
    """Return what is known of a tensor's memory; None where that is not followed."""
    storage = flat_storage(tensor)
    return None if storage is None or is_meta(tensor) else contents_of(order, storage)


def touch_tensor(
    contents: Contents, tensor: Tensor, kind: TouchKind, clock: OperationClock, name: str
) -> None:
    """Take note that an operation reads or writes a tensor.

    Raises:
        DataRaceError: As :meth:`Contents.add`.
    """
    size = tensor.element_size()
    offset, shape, strides = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    low, high = span_of(tensor)
    if low == high:
        return
    spans = partial(strided_spans, offset, shape, strides, size)
    part = TouchPart(name, low, high, spans, size)
    key = (kind, offset, shape, strides, size)
    contents.add(Touch(kind, clock, clock.where, (part,), key), label_of(tensor))


def label_of(tensor: Tensor) -> str:
    """Return the name of a tensor's memory in errors."""
    kind = str(tensor.dtype).removeprefix("torch.")
    where = "a pinned tensor" if getattr(storage_of(tensor), "_kernbench_pinned", 0) else "a tensor"
    return f"{where} {tuple(tensor.shape)} {kind}"


def begin_unwritten(contents: Contents, storage: Any) -> None:
    """Note that nothing of a new storage is written. Its bytes are :data:`POISON`."""
    contents.written = np.zeros(storage.nbytes(), np.uint8)


def mark_unwritten(contents: Contents, tensor: Tensor) -> None:
    """Note that a tensor got what nothing had written elsewhere."""
    contents.is_followed = True
    if contents.written is None:
        contents.written = np.full(storage_of(tensor).nbytes(), 255, np.uint8)
    for start, stop in _spans(tensor):
        contents.written[start:stop] = 0


def unwritten_elements(contents: Contents, tensor: Tensor, *, is_written: bool) -> Tensor:
    """Return for each element of a tensor whether a byte of it is unwritten.

    ``is_written``: its bytes are those of after an operation that is not noted yet.
    """
    is_known = is_written or unwritten_byte(contents, tensor) is not None
    if contents.written is None or not is_known:
        return torch.zeros(tensor.shape, dtype=torch.bool)
    return (_bytes_of_elements(contents.written, tensor) == 0).any(-1)


def set_unwritten(contents: Contents, tensor: Tensor, flags: Tensor) -> None:
    """Note for each element of a tensor whether it is unwritten, and all bytes of it."""
    is_new = contents.written is None
    if is_new:
        if not flags.any():
            return
        contents.written = np.full(storage_of(tensor).nbytes(), 255, np.uint8)
    assert contents.written is not None
    elements = _bytes_of_elements(contents.written, tensor)
    # What has been unwritten all along is still poison.
    contents.is_followed |= is_new or bool((flags & (elements != 0).all(-1)).any())
    elements.copy_(torch.where(flags, 0, 255)[..., None])
    if contents.written.all():
        contents.written = None


def _bytes_of_elements(written: npt.NDArray[np.uint8], tensor: Tensor) -> Tensor:
    """Return what is known of a tensor's bytes, as a tensor with one more dim."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    start = tensor.storage_offset() * size
    return torch.from_numpy(written).as_strided((*tensor.shape, size), (*strides, 1), start)


def mark_written(contents: Contents, tensor: Tensor, *, wholly: bool = False) -> None:
    """Note that an operation has written a tensor; ``wholly``: perhaps more of its memory."""
    written = contents.written
    if written is None:
        return
    low, high = span_of(tensor)
    if wholly or (high - low == len(written) and tensor.is_contiguous()):
        contents.written = None
        return
    for start, stop in _spans(tensor):
        written[start:stop] = 255
    # Most often the end is written last.
    if written[-1] and written.all():
        contents.written = None


def unwritten_byte(contents: Contents, tensor: Tensor) -> int | None:
    """Return a byte of a tensor that nothing has written, or None.

    What the bridge itself computes is not observed: bytes other than :data:`POISON` show it.
    """
    written = contents.written
    if written is None:
        return None
    low, high = span_of(tensor)
    missing = np.flatnonzero(written[low:high] == 0)
    if not len(missing):
        return None
    if not tensor.is_contiguous():
        inside = np.zeros(high - low, np.bool_)
        for start, stop in _spans(tensor):
            inside[start - low : stop - low] = True
        missing = missing[inside[missing]]
        if not len(missing):
            return None
    if not contents.is_followed and (bytes_of(storage_of(tensor))[low + missing] != POISON).any():
        contents.written = None
        return None
    return int(low + missing[0])


def refuse_unwritten(name: str, tensor: Tensor, contents: Contents, clock: OperationClock) -> None:
    """Raise an error if an operation computes with what nothing has written."""
    with unobserved():
        byte = unwritten_byte(contents, tensor)
    if byte is None:
        return
    start = tensor.storage_offset() * tensor.element_size()
    kind = str(tensor.dtype).removeprefix("torch.")
    raise UninitializedReadError(
        f"{name} ({clock.where}) reads a tensor {tuple(tensor.shape)} {kind}{byte - start:+d} "
        f"(element {(byte - start) // tensor.element_size()}), which "
        f"{contents.lost or 'nothing has written; initialise the tensor'}, "
        f"{remedy(Allowed.UNINITIALIZED_READS)}"
    )


def bytes_of(storage: Any) -> npt.NDArray[np.uint8]:
    """Return a storage's memory as an array."""
    whole = own_set(torch.empty(0, dtype=torch.uint8), storage)
    array: npt.NDArray[np.uint8] = torch._C.TensorBase.numpy(whole)
    return array


def _spans(tensor: Tensor) -> list[list[int]]:
    size, shape, strides = tensor.element_size(), tensor.shape, tensor.stride()
    return strided_spans(tensor.storage_offset(), shape, strides, size).tolist()


def touch_by_host(order: ProcessOrder, tensor: Tensor, name: str) -> None:
    """Take note that the host reads a tensor in its memory, by other means than an operation.

    Raises:
        DataRaceError: A copy that the host has not waited for writes it.
    """
    contents = contents_of_tensor(order, tensor)
    if contents is not None:
        clock = order.on_host()
        if order.finds_unwritten:
            refuse_unwritten(name, tensor, contents, clock)
        touch_tensor(contents, tensor, TouchKind.READ, clock, name)


def begin_copy(process: Process, host: Any, command: StreamCommand, *, writes: bool) -> None:
    """Note that a copy reads or writes a tensor of pinned memory, and that the host goes on.

    What is copied may be a number, which CUDA takes with the call.
    """
    storage = None if process.order is not None else storage_or_none(host)
    if getattr(storage, "_kernbench_pinned", False):
        process.copies = [copy for copy in process.copies if not copy[1].done]
        process.copies.append((storage, command, writes, str(user_site())))


def look_at_copies(
    process: Process, used: Iterable[tuple[Any, bool]], what: str, *, can_wait: bool = True
) -> None:
    """Say in the report if the host uses (tensor, whether it writes) what is being copied."""
    for tensor, writes in used:
        used_storage = storage_or_none(tensor)
        for storage, command, is_written, site in (
            process.copies if used_storage is not None else ()
        ):
            if storage._cdata != used_storage._cdata or not (writes or is_written) or command.done:
                continue
            if can_wait:
                process.host.reach()
            if not command.done:
                process.session.unordered.setdefault(
                    f"{what} at {user_site()} {'writes' if writes else 'reads'} pinned memory "
                    f"before the copy at {site}, with non_blocking=True, has ended"
                )
