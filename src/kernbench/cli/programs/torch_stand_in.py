"""PyTorch's CPU as the device of a script: answers what host code asks ``torch.cuda``.

``kernbench script`` runs programs written for a GPU. Their kernels run on the simulated device;
their tensors lie in host memory. So ``device="cuda"`` makes a CPU tensor, such a tensor says that
it is on the GPU, and the questions about the GPU are answered from the machine. Nothing here
imports PyTorch: it waits for the program to do so.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any


@contextmanager
def torch_stands_in(
    properties: Mapping[str, Any],
    lend: Callable[[Any], None],
    has_data: bool = True,
    asked: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Let PyTorch answer for the device while the block runs, from its import on.

    ``properties`` are those of ``torch.cuda.get_device_properties``; ``lend`` is given each tensor
    whose address the program asks for, which may reach a kernel in a table of addresses. ``asked``
    is called whenever the program asks PyTorch for the GPU. Without data, tensors of random numbers
    hold what memory held: no time and no memory goes into them.
    """
    with ExitStack() as undo:

        def prepare(torch: ModuleType) -> None:
            _prepare(torch, properties, _device_mode(torch, lend, has_data, asked), undo)

        loaded = sys.modules.get("torch")
        if loaded is None:
            finder = _AfterImport("torch", prepare)
            sys.meta_path.insert(0, finder)
            undo.callback(finder.leave)
        else:
            prepare(loaded)
        yield


class _AfterImport(importlib.abc.MetaPathFinder):
    """An import hook that runs ``then`` once another finder has imported the module."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        self.leave()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def execute_and_prepare(module: ModuleType) -> None:
                del loader.exec_module  # the class's own again
                execute(module)
                self._then(module)

            loader.exec_module = execute_and_prepare  # type: ignore[method-assign]
        return spec


def _prepare(torch: Any, properties: Mapping[str, Any], mode: Any, undo: ExitStack) -> None:
    described = SimpleNamespace(**properties)
    answers: dict[str, Callable[..., Any]] = {
        "get_device_properties": lambda device=None: described,
        "get_device_capability": lambda device=None: (described.major, described.minor),
        "get_device_name": lambda device=None: described.name,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "current_stream": lambda device=None: torch.cpu.current_stream(),
        "set_stream": lambda stream: None,
        "empty_cache": lambda: None,
    }
    for name, answer in answers.items():
        _replace(undo, torch.cuda, name, answer)
    if not hasattr(torch.cpu, "set_stream"):
        _replace(undo, torch.cpu, "set_stream", lambda stream: None)
    _replace(undo, torch.Tensor, "is_cuda", property(lambda tensor: True))
    mode.__enter__()
    undo.callback(mode.__exit__, None, None, None)


def _replace(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute; undoing it uncovers an inherited one."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    if before is missing:
        undo.callback(delattr, owner, name)
    else:
        undo.callback(setattr, owner, name, before)


def _unfilled(torch: Any) -> dict[Any, Any]:
    """Return the functions that make tensors without numbers, by those that make random ones."""
    return {
        torch.randn: torch.empty,
        torch.rand: torch.empty,
        torch.randn_like: torch.empty_like,
        torch.rand_like: torch.empty_like,
    }


def _device_mode(
    torch: Any, lend: Callable[[Any], None], has_data: bool, asked: Callable[[], None]
) -> Any:
    """Return the mode in which PyTorch's functions make CPU tensors for a GPU's device."""

    def to_host(value: Any) -> Any:
        if isinstance(value, str) and value.split(":")[0] == "cuda":
            asked()
            return "cpu"
        if isinstance(value, torch.device) and value.type == "cuda":
            asked()
            return torch.device("cpu")
        return value

    # A GPU sums these in float32 and rounds once. The CPU's gradients of half-precision weights are
    # summed in half precision, 0.1 away for a thousand rows: nothing to compare a kernel with.
    summed_wide = {torch.nn.functional.layer_norm}

    def widened(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) else value

    unfilled = {} if has_data else _unfilled(torch)

    class OnHost(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                asked()
                return args[0]
            if func is torch.Tensor.data_ptr:
                lend(args[0])
            if "device" in kwargs:
                kwargs["device"] = to_host(kwargs["device"])
            if func is torch.Tensor.to:
                args = (args[0], *map(to_host, args[1:]))
            if func in unfilled:
                func = unfilled[func]
                kwargs.pop("generator", None)
            if func in summed_wide and args[0].dtype in (torch.float16, torch.bfloat16):
                result = func(*map(widened, args), **{k: widened(v) for k, v in kwargs.items()})
                return result.to(args[0].dtype)
            return func(*args, **kwargs)

    return OnHost()
