"""Operations without data: the shapes of results, computed once for all ranks and steps."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.nn.modules._functions import SyncBatchNorm

from kernbench.errors import NoDataError
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.base.operations import Operation
from kernbench.torch_bridge.dispatch.even_choices import tell
from kernbench.torch_bridge.dispatch.known_values import (
    MOST_BYTES,
    follow,
    read,
    results_of,
    values_of,
)
from kernbench.torch_bridge.dispatch.operands import leaves
from kernbench.torch_bridge.placement.call_keys import call_keys, is_meta
from kernbench.torch_bridge.placement.names import CPU, META
from kernbench.torch_bridge.placement.residence import storage_or_none
from kernbench.torch_bridge.processes.process import current

_FUNCTIONAL = "_c10d_functional"
_POST = torch._C.DispatchKey.CompositeExplicitAutograd


class Known:
    """What an operation returns for operands of certain layouts."""

    __slots__ = ("timings", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        """Layouts of its results, or positions of the operands that it returns."""
        self.timings: dict[int, OperationTiming] = {}
        """The timing on each SIP."""


class Shapes:
    """Executes operations on tensors without data.

    Most of PyTorch's shape functions are Python and take 100 us, so their results are cached by
    the operands' layouts. Floats (such as learning rates) are left out of the key.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Known] = {}

    def execute(
        self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, Known | None]:
        """Return the result, and the cached entry for such calls, if there is one.

        Raises:
            NoDataError: Its shape depends on data.
        """
        if operation.is_read:
            answer = read(func, args)
            return stand_in(func, args) if answer is None else answer, None
        if func.namespace == _FUNCTIONAL:
            # The shape function would not call the process group.
            return func._op_dk(_POST, *args, **kwargs), None
        if operation.is_free or operation.shows:
            return _shaped(func, operation, args, kwargs), None
        try:
            result, known = self._compute(func, operation, args, kwargs)
        except NoDataError:
            result = results_of(func, operation, args, kwargs)
            if result is None:
                raise
            return result, None
        follow(func, operation, args, kwargs, result)
        return result, known

    def _compute(
        self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, Known | None]:
        keyed = call_keys(args)
        if keyed is None:
            return _shaped(func, operation, args, kwargs), None
        key: Any = (func, keyed)
        if kwargs:
            named = call_keys(kwargs.values())
            if named is None:
                return _shaped(func, operation, args, kwargs), None
            key = (func, keyed, tuple(kwargs), named)
        known = self._known.get(key)
        if known is not None:
            return _made(known.value, args), known
        try:
            result = _shaped(func, operation, args, kwargs)
        except NoDataError:
            if not _drops_empty_ranks(func):
                raise
            # Assume that no rank's batch is empty.
            return torch.empty_like(args[0]), None
        layout = _layout(result, args, (args, tuple(kwargs.values())))
        if layout is _UNKEPT or operation.name in _SIZED_BY_FRACTIONS:
            return result, None
        known = self._known[key] = Known(layout)
        return result, known


_SYNCHRONIZED: Any = SyncBatchNorm.forward


def _drops_empty_ranks(func: Any) -> bool:
    """Return whether SyncBatchNorm calls it to select the ranks with rows in their batch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _SYNCHRONIZED.__code__:
        frame = frame.f_back
    return frame is not None and func is torch.ops.aten.index.Tensor


_UNKEPT = object()
_SIZED_BY_FRACTIONS = frozenset({"aten.arange", "aten.range"})
"""Operations whose result's size depends on floats."""


def _shaped(func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
    try:
        if func is _CONVOLUTION:
            return _in_format(func(*args, **kwargs), args[0], args[1])
        return func(*args, **kwargs)
    except RuntimeError as error:
        if not isinstance(error, NotImplementedError) and "meta tensor" not in str(error):
            raise
        written = _written(func, args, kwargs)
        if written:
            # PyTorch has no function for their shapes: they are as the program made them.
            return written[0] if len(written) == 1 else written
        # PyTorch's text then lists all its backends.
        first_sentence = str(error).partition("\n")[0].partition(". ")[0]
        raise NoDataError(
            f"{operation.full_name}: the shape of its result depends on data, and a run with "
            f"--no-data has none on devices; run it with data, or keep this part on the host "
            f"({first_sentence})"
        ) from None


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the tensors of ``out=``, with their sizes; none if these may depend on data."""
    named = [argument.name for argument in func._schema.arguments if argument.is_out]
    packet = func._overloadpacket
    if not named or "default" not in packet.overloads():
        return ()
    # What makes its results itself has such a function, unless they depend on data.
    name = packet._qualified_op_name
    has_shape = torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")
    tensors = tuple(kwargs.get(name) for name in named)
    flag = all(isinstance(tensor, Tensor) and tensor.numel() for tensor in tensors)
    return tensors if has_shape and flag else ()


_CONVOLUTION = torch.ops.aten.convolution.default
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def format_of_convolution(image: Tensor, weight: Tensor) -> torch.memory_format:
    """Return the memory format that a device gives a convolution's result and gradients.

    It is channels-last where the image or the weight is.
    """
    last = _CHANNELS_LAST.get(image.dim())
    if last is None or last not in (suggest_memory_format(image), suggest_memory_format(weight)):
        return torch.contiguous_format
    return last


def _in_format(tensor: Tensor, image: Tensor, weight: Tensor) -> Tensor:
    """Return a convolution's result in its memory format, which its shape function leaves out."""
    wanted = format_of_convolution(image, weight)
    return tensor if wanted is torch.contiguous_format else tensor.contiguous(memory_format=wanted)


def stand_in(func: Any, args: Any) -> Any:
    """Return what the host reads from a device if it is not known: zeros."""
    if func is torch.ops.aten.equal.default:
        return tuple(args[0].shape) == tuple(args[1].shape)
    if func is torch.ops.aten.is_nonzero.default:
        return False
    dtype = args[0].dtype
    if dtype is torch.bool:
        return False
    if dtype.is_complex:
        return 0j
    return 0.0 if dtype.is_floating_point else 0


def copy_to_host(operation: Operation, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Copy from a device to the host: known values, otherwise zeros."""
    is_into = operation.full_name == "aten.copy_.default"
    source = args[1] if is_into else args[0]
    values = values_of(source)
    if values is not None:
        tell((source,))
    if is_into:
        written: Tensor = args[0]
        is_unread = written.nbytes > MOST_BYTES and not current().reads_copies
        if values is None and is_unread:
            return written
        return written.zero_() if values is None else written.copy_(values)
    tensor = torch.zeros_like(args[0], dtype=kwargs.get("dtype"), device=CPU)
    return tensor if values is None else tensor.copy_(values)


def comes_back(operation: Operation, args: Any) -> bool:
    """Return whether a copy returns values to the host that it sent to the device.

    DDP, in C++, exchanges facts about its buckets through tensors that no program sees.
    """
    if operation.full_name != "aten.copy_.default" or not isinstance(args[1], Tensor):
        return False
    return is_meta(args[1]) and not is_meta(args[0])


def _layout(result: Any, args: Any, operands: Any) -> Any:
    """Return the layout from which a result is made again; ``operands`` are those by name, too."""
    if result is None:
        return None
    if isinstance(result, (list, tuple)):
        layouts = [_layout(item, args, operands) for item in result]
        return _UNKEPT if _UNKEPT in layouts else (type(result), layouts)
    if not isinstance(result, Tensor):
        return _UNKEPT
    for position, arg in enumerate(args):
        if arg is result:
            return position
    if type(result) is not Tensor or not is_meta(result) or result.storage_offset():
        return _UNKEPT
    # It may have the memory of an operand, which its schema does not say.
    if _memory(result) in map(_memory, leaves(operands)):
        return _UNKEPT
    return (tuple(result.shape), result.stride(), result.dtype)


def _memory(tensor: Tensor) -> int | None:
    """Return what tells a tensor's memory from others; None of wrappers and sparse tensors."""
    return getattr(storage_or_none(tensor), "_cdata", None)


def _made(layout: Any, args: Any) -> Any:
    if layout is None:
        return None
    if type(layout) is int:
        return args[layout]
    if len(layout) == 2:
        kind, layouts = layout
        return kind(_made(layout, args) for layout in layouts)
    shape, stride, dtype = layout
    return torch.empty_strided(shape, stride, dtype=dtype, device=META)
