"""Tensor methods that change elements or make a changed copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from kernbench.dtypes import DType, as_dtype
from kernbench.errors import UnknownNameError, UsageError
from kernbench.runtime_api.base.transfers import DeviceCopy, DeviceToHost, Fill, HostToDevice
from kernbench.runtime_api.memory.in_flight import check_not_in_flight
from kernbench.runtime_api.memory.known_memory import MOST_ELEMENTS
from kernbench.runtime_api.memory.storage import Array, BufferView, as_elements
from kernbench.runtime_api.memory.views import expanded_strides, has_overlap, is_basic_index
from kernbench.runtime_api.tensors.device import Device, sip_of_device
from kernbench.runtime_api.tensors.host_read import read
from kernbench.runtime_api.tensors.tensor_reads import TensorReads


class TensorWrites(TensorReads):
    """Writes. Each is a command on the stream of the tensor's SIP, in order with the kernels."""

    __slots__ = ()

    def copy_(self, source: Any) -> Self:
        """Set the elements to those of a tensor, a numpy array or a number, with broadcasting.

        A source on the same SIP is copied there. One on another SIP goes through the host, which
        is a host read of the source; there is no barrier on the target.
        """
        if not isinstance(source, TensorWrites):
            return self._copy_from_host(np.asarray(source))
        if source.context is not self.context:
            raise UsageError(
                f"copy_: {source.label} belongs to another run; copy its numpy() instead"
            )
        if source.sip_id != self.sip_id:
            return self._copy_from_sip(source)
        if source.dtype is not self.dtype:
            source = source.to(self.dtype)
        source = source.expand(self.shape)
        if source.is_contiguous() and self.is_contiguous():
            self._check_writable("copy_")
            record = _copy_record(self, source)
            known = _known_with(self, _known_of(source))
            self.context.run.submit(
                DeviceCopy(self.context.run, self.buffer, source.buffer, self.nbytes, record),
                writes=self,
                reads=source,
            )
            _know(self, known)
        else:
            self.context.copy_strided(source, self)
        return self

    def _copy_from_sip(self, source: TensorWrites) -> Self:
        if self.context.run.has_data:
            return self._copy_from_host(read(source, "copy_"))
        if source.buffer.last_writer is not None:
            self.context.run.block_on(source.buffer.last_writer)
        self.context.run.wait(
            self.context.run.submit(
                DeviceToHost(self.context.run, source.sip_id, source.nbytes), reads=source
            )
        )
        known = _known_of(source)
        zeros = np.broadcast_to(np.zeros((), self.dtype.numpy), self.shape)
        return self._copy_from_host(zeros if known is None else known, known is not None)

    def _copy_from_host(self, values: Array, is_known: bool = True) -> Self:
        self._check_writable("copy_")
        expanded_strides(values.shape, (0,) * values.ndim, self.shape)
        record = None
        if self.context.run.has_data:
            # The program may change its array before the copy is replayed.
            snapshot = as_elements(values, self.dtype)
            record = _write_record(self, snapshot)
        known = _known_with(self, values if is_known else None)
        self.context.run.submit(
            HostToDevice(self.context.run, self.buffer, self.nbytes, record), writes=self
        )
        _know(self, known)
        return self

    def fill_(self, value: Any) -> Self:
        """Set every element to ``value``."""
        self._check_writable("fill_")
        number = as_elements(np.asarray(value), self.dtype)
        if number.shape:
            raise UsageError(f"fill_ takes a number, but got an array of shape {number.shape}")
        record = _write_record(self, number) if self.context.run.has_data else None
        known = _known_with(self, number)
        self.context.run.submit(
            Fill(self.context.run, self.buffer, self.nbytes, record), writes=self
        )
        _know(self, known)
        return self

    def zero_(self) -> Self:
        """Set every element to zero."""
        return self.fill_(0)

    def __setitem__(self, index: Any, value: Any) -> None:
        if not is_basic_index(index):
            raise UsageError(
                "a tensor can be written through integers, slices, None and ... only; "
                "build the values with numpy, or write a kernel"
            )
        part = self[index]
        if isinstance(value, (int, float, bool)):
            part.fill_(value)
        else:
            part.copy_(value)

    def clone(self) -> Self:
        """Return a contiguous copy on the same SIP."""
        copy = self.context.empty(
            self.shape, dtype=self.dtype, dp=self.dp, name=self.name, device=self.device
        )
        return copy.copy_(self)  # type: ignore[return-value]

    def to(self, *targets: Any, dtype: Any = None, device: Any = None) -> Self:
        """Return the tensor in another element type or on another SIP; itself if it is so already.

        ``targets`` are element types and devices in any order, as in torch.
        """
        for target in targets:
            if isinstance(target, (Device, int)) or str(target).startswith("ahbm"):
                device = target
            else:
                dtype = target
        result = self
        if dtype is not None:
            result = result._to_dtype(_checked_dtype(dtype))
        sip_id = sip_of_device(device, self.sip_id, self.context.run.machine.num_sips)
        if sip_id != self.sip_id:
            copy = self.context.empty(
                self.shape, dtype=result.dtype, dp=self.dp, name=self.name, device=sip_id
            )
            result = copy.copy_(result)  # type: ignore[assignment]
        return result

    def _to_dtype(self, dtype: DType) -> Self:
        if dtype is self.dtype:
            return self
        return self.context.operators.cast(self, dtype)  # type: ignore[arg-type,return-value]

    def half(self) -> Self:
        """Return the tensor in float16."""
        return self.to("float16")

    def bfloat16(self) -> Self:
        """Return the tensor in bfloat16."""
        return self.to("bfloat16")

    def float(self) -> Self:
        """Return the tensor in float32."""
        return self.to("float32")

    def _check_writable(self, entry: str) -> None:
        self.context.run.check_open(f"{entry} of {self.label}")
        if has_overlap(self.shape, self._strides):
            raise UsageError(
                f"{entry}: {self.label} is expanded, so that elements share memory; "
                "write to a clone()"
            )
        check_not_in_flight(self, entry, writes=True)


def _known_of(tensor: TensorWrites) -> Array | None:
    """Return the elements of a tensor if they are known in a run without data."""
    known = tensor.buffer.known
    return None if known is None else _shown(tensor, known)


def _known_with(tensor: TensorWrites, values: Array | None) -> Array | None:
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


def _know(tensor: TensorWrites, known: Array | None) -> None:
    if known is not None:
        tensor.buffer.know(known, tensor.buffer.last_writer)


def _shown(tensor: TensorWrites, memory: Array) -> Array:
    size = tensor.dtype.itemsize
    strides = tuple(stride * size for stride in tensor.stride())
    return np.ndarray(tensor.shape, tensor.dtype.numpy, memory, tensor.offset * size, strides)


def _write_record(target: TensorWrites, values: Array) -> Callable[[], None]:
    view = BufferView(target)

    def write() -> None:
        view.array()[...] = values
        if view.is_counted:
            view.written()[...] = np.iinfo(view.written().dtype).max

    return write


def _copy_record(target: TensorWrites, source: TensorWrites) -> Callable[[], None]:
    to_view, from_view = BufferView(target), BufferView(source)

    def copy() -> None:
        to_view.array()[...] = from_view.array()
        if to_view.is_counted or from_view.is_counted:
            to_view.count()
            from_view.count()
            to_view.written()[...] = from_view.written()

    return copy


def _checked_dtype(given: Any) -> DType:
    try:
        return as_dtype(given)
    except UnknownNameError as error:
        raise UsageError(f"to(): {given!r} is neither an element type nor a device") from error
