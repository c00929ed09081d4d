"""Methods of ``torch.Tensor`` that report or change a tensor's device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import _SHARDED_OPS
from torch.nn.parameter import UninitializedTensorMixin
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from kernbench.errors import KernbenchError
from kernbench.torch_bridge.base.operations import PLAIN, holds_memory
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.pinned import pinned
from kernbench.torch_bridge.placement.call_stacks import frames_of
from kernbench.torch_bridge.placement.moves import moving
from kernbench.torch_bridge.placement.names import (
    CPU,
    DEVICE_TYPE,
    EXECUTING,
    META,
    check_name,
    is_simulated,
    with_index,
)
from kernbench.torch_bridge.placement.residence import residence_of, settle_open
from kernbench.torch_bridge.placement.touched import (
    contents_of_tensor,
    look_at_copies,
    touch_by_host,
)
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.compiling import COMPILING
from kernbench.torch_bridge.processes.process import HERE, Process, current

_ASKED = "_kernbench_device"
"""The attribute of a wrapper that says for which device it was made."""
_Base = torch._C.TensorBase
_device_of = _Base.device.__get__
_to = torch.Tensor.to
_cpu = torch.Tensor.cpu
_copy = torch.Tensor.copy_
_numpy, _tolist = torch.Tensor.numpy, torch.Tensor.tolist
_new_tensor = torch.Tensor.new_tensor
_make_nested: Any = torch._C._nested.nested_tensor
_begin_default = DeviceContext.__init__
_make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
_BY_SHAPE = (
    *("empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm"),
    *("arange", "linspace", "logspace", "eye", "empty_strided"),
)
_OF_MOVES = ("dtype", "non_blocking", "copy", "memory_format")
"""Arguments that all overloads of ``aten::to`` have which name a device."""
_has_mode = torch._C._is_torch_function_mode_enabled
# PyTorch caches this at the first call, and `with torch.device(...)` needs the originals.
_device_constructors()
_group = torch._C._group_tensors_by_device_and_dtype
_is_transformed = torch._C._functorch.is_functorch_wrapped_tensor
_untransformed = torch._C._functorch.get_unwrapped


def cpp_device(tensor: Tensor) -> torch.device:
    """Return the device that C++ has a tensor on."""
    device: torch.device = _device_of(tensor)
    return device


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor holds memory itself, and is not a wrapper around others."""
    kind = type(tensor)
    return kind in PLAIN or holds_memory(kind)


def device_of(tensor: Tensor) -> torch.device:
    """Return a tensor's device as the program sees it."""
    if EXECUTING.depth:
        return cpp_device(tensor)
    if is_plain(tensor):
        residence = residence_of(tensor)
        if residence is not None:
            return residence.device
        # Inside torch.func.grad, vmap and the like, of whose wrappers Python sees nothing.
        wrapped = _is_transformed(tensor)
        return device_of(_untransformed(tensor)) if wrapped else cpp_device(tensor)
    inner = inner_of(tensor)
    if inner is not None:
        return device_of(inner)
    asked: torch.device | None = getattr(tensor, "fake_device", None) or vars(tensor).get(_ASKED)
    return asked or cpp_device(tensor)


def inner_of(tensor: Tensor) -> Tensor | None:
    """Return the tensor inside a wrapper (DTensor, AsyncCollectiveTensor, MaskedTensor).

    The first one, if there are several, as in nested tensors.
    """
    inner = getattr(tensor, "_local_tensor", None)
    if inner is None:
        inner = getattr(tensor, "elem", None)
    if inner is None:
        inner = getattr(tensor, "_masked_data", None)
    if inner is None and is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        inner = getattr(tensor, names[0], None) if names else None
    return inner if isinstance(inner, Tensor) else None


def on_device(tensor: Tensor) -> bool:
    """Return whether the program sees a tensor on a simulated device."""
    return not EXECUTING.depth and device_of(tensor).type == DEVICE_TYPE


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``Tensor.to``: a move to the host copies, and a move to the tensor's device does nothing."""
    if EXECUTING.depth:
        return _to(self, *_indexed(args), **_indexed_keywords(kwargs))
    kwarg = kwargs.get("device", args[0] if args else None)
    if isinstance(kwarg, Tensor):
        return to(self, device_of(kwarg), kwarg.dtype, *args[1:], **kwargs)
    if not isinstance(kwarg, (str, torch.device)) and type(kwarg) is not int:
        return _to(self, *args, **kwargs)
    source = device_of(self)
    if is_simulated(kwarg):
        target = with_index(kwarg)
        if source == target:
            # C++ would see a move from the CPU.
            return _converted(self, args, kwargs)
        if "device" in kwargs:
            return returning(_to(self, *args, **{**kwargs, "device": target}), source)
        return returning(_to(self, target, *args[1:], **kwargs), source)
    if source.type == DEVICE_TYPE and torch.device(kwarg) == CPU:
        # C++ has it there already, and would return the same memory.
        resolved = self.resolve_conj().resolve_neg() if self.is_conj() or self.is_neg() else self
        with moving(None):
            return returning(_converted(resolved, args, {**kwargs, "copy": True}), source)
    if source.type == DEVICE_TYPE and torch.device(kwarg) == META == cpp_device(self):
        # C++ has what is without data there already.
        self = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=META)
    return _to(self, *args, **kwargs)


def _as_method(overload: Any) -> Callable[..., Tensor]:
    """Return what an overload of ``aten::to`` does, which graphs of ``torch.export`` call."""
    call_cxx, names = overload._op, [item.name for item in overload._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> Tensor:
        asked = dict(zip(names, args, strict=False)) | kwargs
        device = asked.get("device", asked.get("other"))
        if device is None or EXECUTING.depth or COMPILING.depth:
            result: Tensor = call_cxx(*args, **kwargs)
            return result
        rest = {name: asked[name] for name in _OF_MOVES if asked.get(name) is not None}
        return to(asked["self"], device, **rest)

    return call


def returning(moved: Tensor, source: torch.device) -> Tensor:
    """Move a copy's gradient back to the device of ``source``: C++ has both on the CPU."""
    made_by = moved.grad_fn if moved.requires_grad else None
    if made_by is not None and source.type in (DEVICE_TYPE, CPU.type):

        def back(gradients: tuple[Any, ...], _: Any) -> tuple[Any, ...]:
            return tuple(_moved_back(gradient, source) for gradient in gradients)

        made_by.register_hook(back)
    return moved


def _moved_back(gradient: Any, target: torch.device) -> Any:
    if not isinstance(gradient, Tensor):
        return gradient
    if is_plain(gradient) and target.type == DEVICE_TYPE:
        settle_open(gradient, target)
    return to(gradient, target)


def copy_(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """``Tensor.copy_``: a source that requires a gradient is moved first, differentiably."""
    if isinstance(source, Tensor) and source.requires_grad and torch.is_grad_enabled():
        place = device_of(self)
        if place != device_of(source) and not EXECUTING.depth:
            source = to(source, place)
    return _copy(self, source, non_blocking)


def _converted(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Apply the other arguments of ``to``: dtype, copy, memory_format."""
    positional = args if "device" in kwargs else args[1:]
    asked = dict(zip(("dtype", "non_blocking", "copy"), positional, strict=False)) | kwargs
    rest = {name: value for name, value in asked.items() if name != "device" and value is not None}
    return _to(tensor, **rest) if rest.keys() - {"non_blocking"} else tensor


def _indexed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    if args and isinstance(args[0], (str, torch.device)) and is_simulated(args[0]):
        return (with_index(args[0]), *args[1:])
    return args


def _indexed_keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    device = kwargs.get("device")
    if device is not None and is_simulated(device):
        return {**kwargs, "device": with_index(device)}
    return kwargs


def cpu(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``Tensor.cpu``."""
    return to(self, CPU) if on_device(self) else _cpu(self, *args, **kwargs)


def cuda(self: Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
    """``Tensor.cuda``."""
    target = with_index("cuda" if device is None else device)
    return to(self, target, non_blocking=True, **kwargs) if non_blocking else to(self, target)


def numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.numpy``, which a device tensor refuses without ``force``."""
    if on_device(self):
        if kwargs.get("force"):
            return _numpy(cpu(self.detach()), **kwargs)
        raise TypeError(
            f"can't convert {device_of(self)} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    process = HERE.process
    result = _numpy(self, *args, **kwargs)
    if process is not None and not EXECUTING.depth and (process.order or process.copies):
        # Who takes a view, waits, and reads it is right: it is read until it goes, as far as is
        # known.
        finalize(result, _note_read, process, self, next(_calls(), None)).atexit = False
    return result


def _calls() -> Iterator[tuple[str, str]]:
    """Yield the file and the name of each function that runs, innermost first."""
    return ((file, name) for file, _, name in frames_of(sys._getframe(1)))


@unseen
def _note_read(process: Process, tensor: Tensor, taker: tuple[str, str] | None) -> None:
    """Note that a view of numpy's has been read; what is raised here, Python would only print."""
    order = process.order
    with torch._C.DisableTorchFunctionSubclass():
        if order is None:
            # A view that was given out may have gone unread.
            if any(call == taker for call in _calls()):
                look_at_copies(process, [(tensor, False)], "Tensor.numpy", can_wait=False)
            return
        try:
            touch_by_host(order, tensor, "Tensor.numpy")
        except KernbenchError as error:
            order.late = error


def tolist(self: Tensor) -> Any:
    """``Tensor.tolist``: C++ would copy to the host only what it has elsewhere."""
    has_data = residence_of(self) is not None and current().session.run.has_data
    if not has_data:
        _read_in_memory(self)
    return _tolist(cpu(self.detach()) if has_data else self)


def _read_in_memory(tensor: Tensor) -> None:
    """Note that the program reads a tensor in the host's memory, where it is."""
    process = HERE.process
    if process is None or EXECUTING.depth:
        return
    if process.order is not None:
        touch_by_host(process.order, tensor, "Tensor.tolist")
    elif process.copies:
        look_at_copies(process, [(tensor, False)], "Tensor.tolist")


def record_stream(self: Tensor, stream: Any) -> None:
    """``Tensor.record_stream``: memory that a stream uses is given out when that has gone on."""
    process = current()
    order = process.order
    contents = None if order is None else contents_of_tensor(order, self)
    if order is None or contents is None:
        return
    if process.capture is not None and stream.is_capturing():
        process.capture.memory.hold(self)
    else:
        contents.record(order.stream(stream.queue.queue))


def read_by_host(data: Any) -> Any:
    """Return nested sequences of numbers, with each device tensor copied to the host.

    C++ reads such numbers without the observer: the host would not wait for them, and without
    data there are none.
    """
    if type(data) is not list and type(data) is not tuple:
        return data
    kinds = set(map(type, data))
    if not any(issubclass(kind, (Tensor, list, tuple)) for kind in kinds):
        return data
    return [
        to(item.detach(), CPU)
        if isinstance(item, Tensor) and on_device(item)
        else read_by_host(item)
        for item in data
    ]


def new_tensor(
    self: Tensor, data: Any, *, device: Any = None, requires_grad: bool = False, **kwargs: Any
) -> Tensor:
    """``Tensor.new_tensor``: by default on the device of the tensor."""
    is_pinned = kwargs.pop("pin_memory", False)
    data = read_by_host(data)
    target = device_of(self) if device is None else device
    if not is_simulated(target):
        device = {} if device is None else {"device": device}
        tensor = _new_tensor(self, data, requires_grad=requires_grad, **device, **kwargs)
        return pinned(tensor) if is_pinned else tensor
    tensor = to(_new_tensor(self, data, device=CPU, **kwargs), with_index(target))
    return tensor.requires_grad_() if requires_grad else tensor


def _wrapper(cls: Any, *args: Any, **kwargs: Any) -> Tensor:
    # C++ has no device guard for a device that it was not built for, and would abort.
    place = current().session.place
    asked = kwargs.get("device")
    if asked is not None and is_simulated(asked):
        kwargs["device"] = place
    else:
        asked = None
    places = [place if isinstance(arg, torch.device) and is_simulated(arg) else arg for arg in args]
    tensor: Tensor = _make_wrapper_subclass(cls, *places, **kwargs)
    if asked is not None:
        vars(tensor)[_ASKED] = with_index(asked)
    return tensor


def _factory(original: Any) -> Any:
    def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        # C++ cannot pin it.
        is_pinned = kwargs.pop("pin_memory", False)
        data = read_by_host(data)
        if device is None or not is_simulated(device):
            tensor: Tensor = original(data, *args, device=device, **kwargs)
            return pinned(tensor) if is_pinned else tensor
        requires_grad = kwargs.pop("requires_grad", False)
        # C++ pins the memory that it reads the data into, and then moves it.
        tensor = to(original(data, *args, device=CPU, **kwargs), with_index(device))
        return tensor.requires_grad_() if requires_grad else tensor

    return make


def _like(original: Any) -> Any:
    """Return a function that makes a tensor like its operand, or on the host if requested."""

    @wraps(original)
    def make(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return original(*args, **kwargs)
        if is_simulated(device):
            return original(*args, device=with_index(device), **kwargs)
        if torch.device(device) != CPU:
            return original(*args, device=device, **kwargs)
        with moving(None):
            return original(*args, device=device, **kwargs)

    return make


def _numbered(original: Any) -> Any:
    """Return a function that also accepts a device number, which C++ does not know."""

    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if type(device) is int:
            kwargs["device"] = with_index(device)
        elif type(device) is str:
            check_name(device)
        return original(*args, **kwargs)

    return make


def _checked(original: Any) -> Any:
    """Return a function that refuses what its first argument names, before C++ cuts its number."""

    def call(*args: Any, **kwargs: Any) -> Any:
        check_name(kwargs.get("device", args[0] if args else None))
        return original(*args, **kwargs)

    return call


def _default(self: DeviceContext, device: Any) -> None:
    """``torch.set_default_device``."""
    check_name(device)
    _begin_default(self, device)


def _nested(parts: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
    """``torch.nested.nested_tensor``: its parts are moved first, as C++ must not get the device."""
    if device is not None and is_simulated(device):
        parts = [torch.as_tensor(part, dtype=dtype, device=device).detach() for part in parts]
        device = None
        kwargs["pin_memory"] = False
    return _make_nested(parts, dtype=dtype, device=device, **kwargs)


def _sparse(original: Any) -> Any:
    """Return a constructor of sparse tensors whose parts are moved first, as in ``_nested``."""

    def make(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type not in (DEVICE_TYPE, CPU.type):
            return original(*args, device=device, **kwargs)
        place = with_index(device) if is_simulated(device) else CPU
        args = tuple(_moved_to(place, arg) for arg in args)
        kwargs = {name: _moved_to(place, kwarg) for name, kwarg in kwargs.items()}
        requires_grad = kwargs.pop("requires_grad", False)
        # What is given as numbers C++ has made on the host.
        tensor = to(original(*args, device=CPU, **kwargs), place)
        return tensor.requires_grad_() if requires_grad else tensor

    return make


def _moved_to(place: torch.device, value: Any) -> Any:
    return to(value, place) if isinstance(value, Tensor) else value


def _by_device_and_dtype(tensors: Any, with_indices: bool = False) -> Any:
    """``torch._C._group_tensors_by_device_and_dtype``, in which C++ would name its own device."""
    result: dict[Any, Any] = {}
    for (device, dtype), (lists, indices) in _group(tensors, with_indices).items():
        places: dict[Any, list[int]] = {}
        for position, first in enumerate(lists[0]):
            place = device if first is None else device_of(first)
            places.setdefault(place, []).append(position)
        for place, chosen in places.items():
            split = [[item[at] for at in chosen] if item else item for item in lists]
            result[place, dtype] = split, [indices[at] for at in chosen] if indices else indices
    return result


def get_device(self: Tensor) -> int:
    index = device_of(self).index
    return -1 if index is None else index


def replace_function(patches: Patches, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of ``torch`` such that modes still recognize it."""
    original = getattr(torch, name)
    result = asking(make(original), name, torch, num_asked=int(name.endswith("_like")))
    patches.set(torch, name, result)
    constructors = _device_constructors()
    if original in constructors:
        constructors.add(result)
        patches.on_close(constructors.discard, result)


def asking(
    function: Callable[..., Any],
    name: str,
    owner: Any = Tensor,
    *,
    num_asked: int = 1,
    is_getter: bool = False,
) -> Any:
    """Return a function that asks ``__torch_function__`` of modes first, as C++ does.

    And of the classes of its first arguments (``num_asked``). They are asked about what stands in
    its place, which pickle and generated code find by name.
    """

    @wraps(getattr(owner, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        asked = args[:num_asked]
        if _has_mode() or has_torch_function(asked):
            try:
                return handle_torch_function(named, asked, *args, **kwargs)
            except AttributeError as error:
                # What no class wanted PyTorch asks for its module, which a getter has none of.
                if error.obj is not named:
                    raise
                raise TypeError(f"{type(asked[0])} does not implement Tensor.{name}") from None
        return function(*args, **kwargs)

    call.__module__, call.__qualname__ = "torch", name if owner is torch else f"Tensor.{name}"
    result: Any = unseen(call)
    if is_getter:
        result = property(result)
    named = result.__get__ if is_getter else result
    return result


def install(patches: Patches) -> None:
    """Let tensors report their simulated device."""
    getters = {"device": device_of} | {
        f"is_{kind}": lambda self, kind=kind: device_of(self).type == kind
        for kind in ("cuda", "cpu", "meta")
    }
    methods = (to, cpu, cuda, copy_, numpy, tolist, new_tensor, get_device, record_stream)
    replaced = {item.__name__: asking(item, item.__name__) for item in methods}
    # PyTorch keeps a list of the methods of parameters without a shape (`nn.LazyLinear`).
    known = UninitializedTensorMixin._allowed_methods
    allowed = [replaced[name] for name in replaced if getattr(Tensor, name) in known]
    patches.set(UninitializedTensorMixin, "_allowed_methods", known + allowed)
    patches.set_all(
        torch.Tensor,
        **{name: asking(item, name, is_getter=True) for name, item in getters.items()},
        **replaced,
        _make_wrapper_subclass=staticmethod(_wrapper),
    )
    for name in ("device", "is_meta"):
        # C++ asks wrappers for this getter; ShardedTensor refers to the original.
        original, result = getattr(_Base, name).__get__, getattr(torch.Tensor, name).__get__
        _SHARDED_OPS[result] = _SHARDED_OPS[original]
        patches.on_close(_SHARDED_OPS.pop, result)
    moves = torch.ops.aten.to
    for overload in (moves.device, moves.dtype_layout, moves.other):
        patches.set(overload, "_op", _as_method(overload))
    patches.set(torch._C._nested, "nested_tensor", _nested)
    patches.set(torch._C._nn, "_parse_to", _checked(torch._C._nn._parse_to))
    patches.set(DeviceContext, "__init__", _default)
    patches.set(torch._C, "_group_tensors_by_device_and_dtype", _by_device_and_dtype)
    for name in ("tensor", "as_tensor", "asarray", "scalar_tensor"):
        replace_function(patches, name, _factory)
    for name in ("coo", "csr", "csc", "bsr", "bsc", "compressed"):
        replace_function(patches, f"sparse_{name}_tensor", _sparse)
    for name in _BY_SHAPE:
        replace_function(patches, name, _numbered)
    for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint"):
        replace_function(patches, f"{name}_like", _like)
    for name in ("empty", "zeros", "ones", "full", "empty_strided"):
        patches.set(torch.Tensor, f"new_{name}", _like(getattr(torch.Tensor, f"new_{name}")))
