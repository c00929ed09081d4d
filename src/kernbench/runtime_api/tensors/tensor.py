"""The tensor that a bench sees: views, host reads, writes, and arithmetic by Triton kernels."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator
from functools import lru_cache
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from kernbench.dtypes import Array, DType
from kernbench.errors import UsageError
from kernbench.policy import DPPolicy
from kernbench.runtime_api.memory.storage import Storage
from kernbench.runtime_api.memory.views import (
    Ints,
    check_sizes,
    contiguous_strides,
    indexed,
    is_basic_index,
    is_contiguous,
    normal_dim,
)
from kernbench.runtime_api.tensors import tensor_reads, tensor_views, tensor_writes
from kernbench.runtime_api.tensors.device import Device, sip_of_device
from kernbench.runtime_api.tensors.operators import binary, method_of, operators, reflected, unary

if TYPE_CHECKING:
    from kernbench.memory import Buffer, Layout
    from kernbench.runtime_api.tensors.tensor_context import TensorContext
    from kernbench.runtime_api.tensors.torch_names import TensorMethods
else:
    TensorMethods = object


class Tensor(TensorMethods):
    """An array in the HBM of one SIP. Arithmetic launches kernels of ``kernbench.ops``.

    It is a view of a storage: offset and strides count elements, and views of a storage share it.
    Each host read waits for what writes the tensor (:func:`host_read.read`); each write is a
    command on its SIP's stream.
    """

    __slots__ = (
        "__weakref__", "_address", "_strides", "buffer", "context", "dp", "dtype", "name", "offset",
        "shape", "storage",
    )  # fmt: skip

    def __init__(
        self,
        context: TensorContext,
        storage: Storage,
        dtype: DType,
        offset: int,
        shape: Ints,
        strides: Ints,
        dp: DPPolicy | None,
        name: str,
    ) -> None:
        self.context = context
        self.storage = storage
        self.buffer: Buffer = storage.buffer
        self.dtype = dtype
        self.offset = offset
        self.shape = shape
        self._strides = strides
        self.dp = dp
        """How the tensor lies over the cubes and PEs of its SIP; None is the SIP's default."""
        self.name = name
        self._address = storage.buffer.address + offset * dtype.itemsize

    def data_ptr(self) -> int:
        """Return the virtual address of the first element."""
        return self._address

    @property
    def device(self) -> Device:
        return Device(self.buffer.sip_id, self.context.run.machine.name)

    @property
    def sip_id(self) -> int:
        return self.buffer.sip_id

    @property
    def label(self) -> str:
        """How errors name the tensor."""
        return f"{self.name} {self.shape} {self.dtype.name}"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        """Return the number of dims."""
        return len(self.shape)

    @overload
    def size(self) -> Ints: ...

    @overload
    def size(self, dim: int) -> int: ...

    def size(self, dim: int | None = None) -> Ints | int:
        """Return the shape, or the size of one dim."""
        return self.shape if dim is None else self.shape[normal_dim(dim, len(self.shape))]

    @overload
    def stride(self) -> Ints: ...

    @overload
    def stride(self, dim: int) -> int: ...

    def stride(self, dim: int | None = None) -> Ints | int:
        """Return the strides in elements, or that of one dim."""
        return self._strides if dim is None else self._strides[normal_dim(dim, len(self.shape))]

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """Return the bytes per element."""
        return self.dtype.itemsize

    def storage_offset(self) -> int:
        """Return the offset of the tensor in its storage, in elements."""
        return self.offset

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Return whether the elements lie one after another, in row-major order."""
        return is_contiguous(self.shape, self._strides)

    def is_floating_point(self) -> bool:
        """Return whether the element type is a floating-point one."""
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def show(self, offset: int, shape: Ints, strides: Ints) -> Tensor:
        """Return a tensor that views other elements of the same storage."""
        return Tensor(
            self.context, self.storage, self.dtype, offset, shape, strides, self.dp, self.name
        )

    def new_result(self, shape: Ints, dtype: DType) -> Tensor:
        """Return an unwritten tensor on the same SIP, for what a kernel computes from this one.

        It is laid over the SIP's cubes and PEs as this one is, where the shapes agree.
        """
        sip_id = self.buffer.sip_id
        dp = self.dp if self.shape == shape else None
        device = None if sip_id == self.context.run.rank_state.sip_id else sip_id
        return allocate(self.context, shape, dtype, dp, device=device)

    view = tensor_views.view
    flatten = tensor_views.flatten
    reshape = tensor_views.reshape
    contiguous = tensor_views.contiguous
    permute = tensor_views.permute
    transpose = tensor_views.transpose
    t = tensor_views.t
    unsqueeze = tensor_views.unsqueeze
    squeeze = tensor_views.squeeze
    expand = tensor_views.expand
    narrow = tensor_views.narrow
    split = tensor_views.split
    chunk = tensor_views.chunk
    unbind = tensor_views.unbind

    @property
    def T(self) -> Tensor:  # noqa: N802 - torch's name
        return self.permute(list(range(self.ndim))[::-1])

    @property
    def mT(self) -> Tensor:  # noqa: N802 - torch's name
        return self.transpose(-2, -1)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind())

    def __getitem__(self, index: Any) -> Tensor:
        if is_basic_index(index):
            return self.show(*indexed(self.offset, self.shape, self._strides, index))
        return tensor_reads.pick(self, index)

    numpy = tensor_reads.numpy
    cpu = tensor_reads.cpu
    item = tensor_reads.item
    tolist = tensor_reads.tolist
    __repr__ = tensor_reads.describe
    _repr_html_ = tensor_reads.describe_html

    @property
    def data(self) -> Array:
        """A copy of the elements as a numpy array."""
        return tensor_reads.data(self)

    def __float__(self) -> builtins.float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.is_floating_point:
            raise TypeError(f"only integer tensors can be an index, but got {self.dtype}")
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(
                "a tensor's elements cannot be read without a copy; leave out copy=False"
            )
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    fill_ = tensor_writes.fill_
    clone = tensor_writes.clone
    to = tensor_writes.to
    cuda = tensor_writes.cuda
    __setitem__ = tensor_writes.set_item

    def copy_(self, source: Any) -> Self:
        """Set the elements to those of a tensor, a numpy array or a number, with broadcasting.

        A source on the same SIP is copied there. One on another SIP goes through the host, which
        is a host read of the source; there is no barrier on the target.
        """
        if isinstance(source, Tensor):
            tensor_writes.copy_from_tensor(self, source)
        else:
            tensor_writes.copy_from_host(self, np.asarray(source))
        return self

    def zero_(self) -> Tensor:
        """Set every element to zero."""
        return self.fill_(0)

    def half(self) -> Tensor:
        """Return the tensor in float16."""
        return self.to("float16")

    def bfloat16(self) -> Tensor:
        """Return the tensor in bfloat16."""
        return self.to("bfloat16")

    def float(self) -> Tensor:
        """Return the tensor in float32."""
        return self.to("float32")

    __add__, __radd__ = binary("add"), reflected("add")
    __sub__, __rsub__ = binary("sub"), reflected("sub")
    __mul__, __rmul__ = binary("mul"), reflected("mul")
    __truediv__, __rtruediv__ = binary("div"), reflected("div")
    __pow__, __rpow__ = binary("pow"), reflected("pow")
    __matmul__ = binary("matmul")
    __lt__, __le__ = binary("lt"), binary("le")
    __gt__, __ge__ = binary("gt"), binary("ge")
    __abs__ = unary("abs")

    def __neg__(self) -> Tensor:
        return operators().mul(self, -1)

    if not TYPE_CHECKING:  # so that a type checker finds names that are missing

        def __getattr__(self, name: str) -> Any:
            # Operations of kernbench.ops that need no place in the class.
            return method_of(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *operators().TENSOR_METHODS})

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        if not _is_operand(other):
            return NotImplemented
        return operators().eq(self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        if not _is_operand(other):
            return NotImplemented
        return operators().ne(self, other)

    # Equality is by element, as in torch; a tensor is a key by what it is, not by what it holds.
    __hash__ = object.__hash__

    def __iadd__(self, other: Any) -> Self:
        return self.copy_(self + other)

    def __isub__(self, other: Any) -> Self:
        return self.copy_(self - other)

    def __imul__(self, other: Any) -> Self:
        return self.copy_(self * other)

    def __itruediv__(self, other: Any) -> Self:
        return self.copy_(self / other)


def _is_operand(other: object) -> bool:
    """Return whether something can be compared with a tensor element by element."""
    return isinstance(other, (Tensor, Real, np.bool_))


def allocate(
    context: TensorContext,
    shape: Ints,
    dtype: DType,
    dp: DPPolicy | None = None,
    name: str | None = None,
    device: Any = None,
) -> Tensor:
    """Return an unwritten tensor, by default on the SIP of the calling rank.

    Raises:
        UsageError: The run has ended, or an argument is not what it must be.
    """
    run = context.run
    if dp is not None and not isinstance(dp, DPPolicy):
        raise UsageError(f"dp must be a DPPolicy, but got {dp!r}")
    name = name or run.next_tensor_name()
    if run.ended:
        run.check_open(name)
    sip_id = run.rank_state.sip_id
    if device is not None:
        sip_id = sip_of_device(device, sip_id, run.machine)
    if dp is not None:
        # A policy that the SIP cannot follow is refused here, not at some later launch.
        dp.resolve(run.machine.sip_at(sip_id))
    size_bytes, strides, layout = _plain_layout(shape, dtype)
    storage = Storage(run.devices.memory(sip_id), size_bytes, name, layout)
    return Tensor(context, storage, dtype, 0, shape, strides, dp, name)


@lru_cache(maxsize=4096)
def _plain_layout(shape: Ints, dtype: DType) -> tuple[int, Ints, Layout]:
    """Return the bytes of a fresh tensor, its strides, and its shape and dtype for the log."""
    size_bytes = math.prod(check_sizes(shape)) * dtype.itemsize
    return size_bytes, contiguous_strides(shape), (shape, dtype.name)
