"""What every tensor is: a storage, and which of its bytes it shows how."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

from kernbench.dtypes import DType
from kernbench.runtime_api.memory.storage import Storage
from kernbench.runtime_api.memory.views import Ints, is_contiguous, normal_dim
from kernbench.runtime_api.tensors.device import Device

if TYPE_CHECKING:
    from kernbench.memory import Buffer
    from kernbench.policy import DPPolicy
    from kernbench.runtime_api.front.context import RuntimeContext


class TensorBase:
    """A view of a storage. Offset and strides count elements; views of a storage share it."""

    __slots__ = (
        "__weakref__",
        "_address",
        "_strides",
        "buffer",
        "context",
        "dp",
        "dtype",
        "name",
        "offset",
        "shape",
        "storage",
    )

    def __init__(
        self,
        context: RuntimeContext,
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
        return Device(self.buffer.sip_id)

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

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dim."""
        return self.shape if dim is None else self.shape[normal_dim(dim, len(self.shape))]

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides in elements, or that of one dim."""
        return self._strides if dim is None else self._strides[normal_dim(dim, len(self.shape))]

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """Return the bytes per element."""
        return self.dtype.itemsize

    def storage_offset(self) -> int:
        """Return where in the storage the tensor begins, in elements."""
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

    def show(self, offset: int, shape: Ints, strides: Ints) -> Self:
        """Return a tensor that shows other elements of the same storage."""
        return type(self)(
            self.context, self.storage, self.dtype, offset, shape, strides, self.dp, self.name
        )
