"""Methods of Tensor that change elements or make a changed copy.

Each write is a command on the stream of the tensor's SIP, in order with the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.dtypes import Array, DType, as_dtype
from kernbench.errors import UnknownNameError, UsageError
from kernbench.runtime_api.base.transfers import DeviceCopy, DeviceToHost, Fill, HostToDevice
from kernbench.runtime_api.memory.storage import (
    MOST_ELEMENTS,
    BufferView,
    as_elements,
    check_not_in_flight,
)
from kernbench.runtime_api.memory.views import expanded_strides, has_overlap, is_basic_index
from kernbench.runtime_api.tensors.device import names_device, sip_of_device
from kernbench.runtime_api.tensors.host_read import read
from kernbench.runtime_api.tensors.operators import operators

if TYPE_CHECKING:
    from kernbench.runtime_api.tensors.tensor import Tensor


def copy_from_tensor(tensor: Tensor, source: Tensor) -> Tensor:
    """Set the elements to those of another tensor of the run; see :meth:`Tensor.copy_`.

    Raises:
        UsageError: The other one belongs to another run, or this one must not be written now.
    """
    if source.context is not tensor.context:
        raise UsageError(f"copy_: {source.label} belongs to another run; copy its numpy() instead")
    if source.sip_id != tensor.sip_id:
        return _copy_from_sip(tensor, source)
    if source.dtype is not tensor.dtype:
        source = source.to(tensor.dtype)
    source = source.expand(tensor.shape)
    if source.is_contiguous() and tensor.is_contiguous():
        _check_writable(tensor, "copy_")
        record = _copy_record(tensor, source)
        known = _known_with(tensor, _known_of(source))
        tensor.context.run.submit(
            DeviceCopy(tensor.context.run, tensor.buffer, source.buffer, tensor.nbytes, record),
            writes=tensor,
            reads=source,
        )
        _know(tensor, known)
    else:
        operators().copy_strided(source, tensor)
    return tensor


def _copy_from_sip(tensor: Tensor, source: Tensor) -> Tensor:
    if tensor.context.run.has_data:
        return copy_from_host(tensor, read(source, "copy_"))
    if source.buffer.last_writer is not None:
        tensor.context.run.block_on(source.buffer.last_writer)
    tensor.context.run.wait(
        tensor.context.run.submit(
            DeviceToHost(tensor.context.run, source.sip_id, source.nbytes), reads=source
        )
    )
    known = _known_of(source)
    zeros = np.broadcast_to(np.zeros((), tensor.dtype.numpy), tensor.shape)
    return copy_from_host(tensor, zeros if known is None else known, known is not None)


def copy_from_host(tensor: Tensor, values: Array, is_known: bool = True) -> Tensor:
    """Set the elements to those of an array of the host.

    Without data, what is written ``is_known`` or not.
    """
    _check_writable(tensor, "copy_")
    expanded_strides(values.shape, (0,) * values.ndim, tensor.shape)
    record = None
    if tensor.context.run.has_data:
        # The program may change its array before the copy is replayed.
        record = _write_record(tensor, as_elements(values, tensor.dtype))
    known = _known_with(tensor, values if is_known else None)
    tensor.context.run.submit(
        HostToDevice(tensor.context.run, tensor.buffer, tensor.nbytes, record), writes=tensor
    )
    _know(tensor, known)
    return tensor


def fill_(tensor: Tensor, value: Any) -> Tensor:
    """Set every element to ``value``."""
    _check_writable(tensor, "fill_")
    number = as_elements(np.asarray(value), tensor.dtype)
    if number.shape:
        raise UsageError(f"fill_ takes a number, but got an array of shape {number.shape}")
    record = _write_record(tensor, number) if tensor.context.run.has_data else None
    known = _known_with(tensor, number)
    tensor.context.run.submit(
        Fill(tensor.context.run, tensor.buffer, tensor.nbytes, record), writes=tensor
    )
    _know(tensor, known)
    return tensor


def set_item(tensor: Tensor, index: Any, value: Any) -> None:
    """Do ``tensor[index] = value``.

    Raises:
        UsageError: The index holds an array or a mask.
    """
    if not is_basic_index(index):
        raise UsageError(
            "a tensor can be written through integers, slices, None and ..., not arrays or masks; "
            "build the values with numpy, or write a kernel"
        )
    part = tensor[index]
    if isinstance(value, (int, float, bool)):
        part.fill_(value)
    else:
        part.copy_(value)


def clone(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the same SIP."""
    copy = tensor.context.empty(
        tensor.shape, dtype=tensor.dtype, dp=tensor.dp, name=tensor.name, device=tensor.device
    )
    return copy.copy_(tensor)


def cuda(tensor: Tensor, device: Any = None) -> Tensor:
    """Return the tensor on a device: the calling rank's, or the one named."""
    return to(tensor, device=tensor.context.run.rank_state.sip_id if device is None else device)


def to(tensor: Tensor, *targets: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the tensor in another element type or on another SIP; itself if it is so already.

    ``targets`` are element types and devices in any order, as in torch.
    """
    for target in targets:
        if names_device(target, tensor.context.run.machine):
            device = target
        else:
            dtype = target
    result = tensor
    if dtype is not None:
        result = _to_dtype(result, _checked_dtype(dtype))
    sip_id = sip_of_device(device, tensor.sip_id, tensor.context.run.machine)
    if sip_id != tensor.sip_id:
        copy = tensor.context.empty(
            tensor.shape, dtype=result.dtype, dp=tensor.dp, name=tensor.name, device=sip_id
        )
        result = copy.copy_(result)
    return result


def _to_dtype(tensor: Tensor, dtype: DType) -> Tensor:
    if dtype is tensor.dtype:
        return tensor
    return operators().cast(tensor, dtype)


def _check_writable(tensor: Tensor, entry: str) -> None:
    tensor.context.run.check_open(f"{entry} of {tensor.label}")
    if has_overlap(tensor.shape, tensor._strides):
        raise UsageError(
            f"{entry}: {tensor.label} is expanded, so that elements share memory; "
            "write to a clone()"
        )
    check_not_in_flight(tensor, entry, writes=True)


def _known_of(tensor: Tensor) -> Array | None:
    """Return the elements of a tensor if they are known in a run without data."""
    known = tensor.buffer.known
    return None if known is None else _shown(tensor, known)


def _known_with(tensor: Tensor, values: Array | None) -> Array | None:
    """Return what a tensor's memory is known to hold once ``values`` were written to it."""
    buffer = tensor.buffer
    if tensor.context.run.has_data or values is None or buffer.size_bytes > 8 * MOST_ELEMENTS:
        return None
    whole = tensor.nbytes == buffer.size_bytes
    known = np.zeros(buffer.size_bytes, np.uint8) if whole else buffer.known
    if known is None:
        return None
    known = known.copy()
    _shown(tensor, known)[...] = as_elements(values, tensor.dtype)
    return known


def _know(tensor: Tensor, known: Array | None) -> None:
    if known is not None:
        tensor.buffer.know(known, tensor.buffer.last_writer)


def _shown(tensor: Tensor, memory: Array) -> Array:
    size = tensor.dtype.itemsize
    strides = tuple(stride * size for stride in tensor.stride())
    return np.ndarray(tensor.shape, tensor.dtype.numpy, memory, tensor.offset * size, strides)


def _write_record(target: Tensor, values: Array) -> Callable[[], None]:
    view = BufferView(target)

    def write() -> None:
        view.array()[...] = values
        if view.is_counted:
            view.written()[...] = np.iinfo(view.written().dtype).max

    return write


def _copy_record(target: Tensor, source: Tensor) -> Callable[[], None]:
    to_view, from_view = BufferView(target), BufferView(source)

    def copy() -> None:
        to_view.array()[...] = from_view.array()
        if to_view.is_counted or from_view.is_counted:
            to_view.count()
            from_view.count()
            to_view.written()[...] = from_view.written()

    return copy


def _checked_dtype(value: Any) -> DType:
    try:
        return as_dtype(value)
    except UnknownNameError as error:
        raise UsageError(f"to(): {value!r} is neither an element type nor a device") from error
