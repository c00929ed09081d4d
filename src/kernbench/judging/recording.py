"""Recording what one call of a candidate launches, inside of a simulated process of PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Protocol
from unittest.mock import patch

import torch
import torch.cuda._gpu_trace as trace
from torch import Tensor
from torch._library import custom_ops
from torch._ops import HigherOrderOperator

from kernbench.judging.comparing import ordered_tensors
from kernbench.judging.record import (
    METHODS,
    NAMESPACES,
    Record,
    RecordError,
    describe,
    describe_tensor,
    described_options,
    ranks_of,
)
from kernbench.judging.tasks import tensors_of
from kernbench.torch_bridge import (
    CollectiveWork,
    Mode,
    NcclGroup,
    Operation,
    SimulatedGroup,
    current_process,
    describe_operation,
)
from kernbench.triton_backend import active_launcher


class Listener(Protocol):
    """What is told of a process."""

    def launched(self, binary: Any, grid: Any, args: Any) -> None:
        """Hear of a launch, before it."""

    def marked(self, kind: str, event: int, stream: int) -> None:
        """Hear of an event or of a stream that is waited for."""

    def called(self, method: str, group: Any, args: Any, kwargs: Any) -> Callable[[Any], None]:
        """Hear of a collective, before it; what is returned hears of its work."""

    def replayed(self) -> None:
        """Hear that a CUDA graph is replayed."""

    def waited(self, work: Any) -> None:
        """Hear that a collective's work is waited for."""


class _Listening:
    """Stands for a launcher's ``launch`` while processes are recorded."""

    def __init__(self, launcher: Any) -> None:
        self._launcher, self._launch = launcher, launcher.launch
        self.by_process: dict[Any, Listener] = {}
        self.users = 0
        self._inside: set[Any] = set()
        """Processes inside of a collective, whose own copies are no work of the program."""
        self._stack = ExitStack()
        self._stack.enter_context(patch.object(launcher, "launch", self))
        for registry, tell in (
            (trace.EventRecordCallbacks, lambda event, stream: self._mark("mark", event, stream)),
            (trace.EventWaitCallbacks, lambda event, stream: self._mark("wait", event, stream)),
            (trace.StreamSynchronizationCallbacks, lambda stream: self._mark("sync", 0, stream)),
            (trace.EventSynchronizationCallbacks, lambda event: self._mark("seen", event, 0)),
        ):
            registry.callback_list.append(tell)
            self._stack.callback(registry.callback_list.remove, tell)
        for name in METHODS:
            self._replace(SimulatedGroup, name, name)
        self._replace(NcclGroup, "_allreduce_by_peers", "allreduce")
        wait = CollectiveWork.wait

        def waits(work: Any, *args: Any, **kwargs: Any) -> Any:
            listener = self._heard_by()
            if listener is not None:
                listener.waited(work)
            return wait(work, *args, **kwargs)

        self._stack.enter_context(patch.object(CollectiveWork, "wait", waits))
        replay = torch.cuda.CUDAGraph.replay

        def replays(graph: Any) -> None:
            listener = self._heard_by()
            if listener is not None:
                listener.replayed()
            replay(graph)

        self._stack.enter_context(patch.object(torch.cuda.CUDAGraph, "replay", replays))

    def close(self) -> None:
        """Put back what was replaced."""
        self._stack.close()

    def __call__(self, binary: Any, grid: Any, args: Any) -> None:
        listener = self._heard_by()
        if listener is not None and self._launcher.run.rank_state.probe is None:
            listener.launched(binary, grid, args)
        self._launch(binary, grid, args)

    def is_inside(self) -> bool:
        """Return whether the calling process is inside of a collective."""
        return current_process() in self._inside

    def _heard_by(self) -> Listener | None:
        process = current_process()
        return None if process in self._inside else self.by_process.get(process)

    def _mark(self, kind: str, event: int, stream: int) -> None:
        listener = self._heard_by()
        if listener is not None:
            listener.marked(kind, event, stream)

    def _replace(self, owner: Any, name: str, method: str) -> None:
        plain = getattr(owner, name)

        @wraps(plain)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            listener = self._heard_by()
            if listener is None:
                return plain(group, *args, **kwargs)
            tell = listener.called(method, group, args, kwargs)
            process = current_process()
            self._inside.add(process)
            try:
                work = plain(group, *args, **kwargs)
            finally:
                self._inside.discard(process)
            tell(work)
            return work

        self._stack.enter_context(patch.object(owner, name, call))


@contextmanager
def ready_to_listen() -> Iterator[_Listening]:
    """Give what hears of all processes; it stays until the last such block ends."""
    launcher: Any = active_launcher()
    hub = launcher.launch if isinstance(launcher.launch, _Listening) else _Listening(launcher)
    hub.users += 1
    try:
        yield hub
    finally:
        hub.users -= 1
        if not hub.users:
            hub.close()


@contextmanager
def listening(listener: Listener) -> Iterator[Callable[[], bool]]:
    """Tell a listener of the calling process inside of the block.

    Gives what says whether the process is inside of a collective.
    """
    process = current_process()
    with ready_to_listen() as hub:
        hub.by_process[process] = listener
        try:
            yield hub.is_inside
        finally:
            del hub.by_process[process]


LAZY = "which computes when it is looked at"
"""What a record remarks of a result in place of a tensor's values."""
_MOST_STEPS = 20_000
_SCALAR_BYTES = 8
_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


class CallRecorder(Mode):
    """Records operations and launches on tensors of the simulated device while it is entered."""

    supports_higher_order_operators = True

    def __init__(self, inputs: list[Tensor], *, has_data: bool) -> None:
        super().__init__()
        self.record = Record()
        self._has_data = has_data
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        """Storages seen, which live on: a number is of one memory."""
        self._kernels: dict[Any, int] = {}
        self._operations: dict[Any, Operation] = {}
        self._streams: dict[int, int] = {}
        self._blobs: list[bytes] = []
        self._blob_bytes = 0
        self._is_inside: Callable[[], bool] = lambda: False
        self._works: dict[int, int] = {}
        for index, tensor in enumerate(inputs):
            number = self._number_of(tensor, {"origin": "input", "input": index})
            self.record.inputs.append(describe_tensor(tensor, number))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what happens inside of the block."""
        self._streams.setdefault(torch.cuda.current_stream().cuda_stream, 0)
        with listening(self) as self._is_inside, self:
            yield

    def finish(self, results: Any) -> Record:
        """Return the record of a call that returned ``results``."""
        self.record.results = self._described(results)
        self.record.blobs = b"".join(self._blobs)
        return self.record

    def _described(self, results: Any) -> Any:
        try:
            return describe(results, self._result)
        except RecordError as error:
            self.record.remarks.append(f"it returns what is no tensor: {error}")
            return None

    def _result(self, tensor: Tensor) -> Any:
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
            self.record.remarks.append(f"it returns a {type(tensor).__name__}, {LAZY}")
            return None
        return self._tensor(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_inside():
            return func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):
            with self:
                return func(*args, **kwargs)
        if func.namespace not in NAMESPACES:
            return self._called_custom(func, args, kwargs)
        operation = self._operations.get(func)
        if operation is None:
            operation = self._operations[func] = describe_operation(func)
        if operation.is_view and not (kwargs.get("device") or operation.is_copy):
            return func(*args, **kwargs)
        tensors = ordered_tensors((args, kwargs))
        on_device = any(item.is_cuda for item in tensors)
        step = None
        if on_device and not (operation.is_read or (operation.is_copy and _leaves(args, kwargs))):
            step = self._step(func, args, kwargs)
        result = func(*args, **kwargs)
        built = [tensor for tensor in ordered_tensors(result) if tensor.is_cuda]
        if on_device and step is None:
            read = sum(tensor.nbytes for tensor in ordered_tensors(result) if not tensor.is_cuda)
            self._append({"kind": "read", "op": str(func), "bytes": read or _SCALAR_BYTES})
        elif step is None and built:
            step = self._step(func, args, kwargs)
        if step is not None:
            if operation.is_random:
                self.record.remarks.append(f"{func} draws random numbers")
            step["results"] = (
                describe(
                    list(result) if isinstance(result, (list, tuple)) else [result],
                    lambda item: (
                        describe_tensor(item, self._number_of(item, {"origin": "made"}))
                        if item.is_cuda
                        else None
                    ),
                )
                if built
                else []
            )
            self._append(step)
        return result

    def _called_custom(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return what an operator of a library returns, recorded by what it does.

        Raises:
            RecordError: It is not written in Python, so that what it does cannot be seen.
        """
        definition = custom_ops.OPDEFS.get(f"{func.namespace}::{func._opname}")
        functions = definition._backend_fns if definition is not None else {}
        inside = functions.get("cuda", functions.get(None))
        if inside is not None:
            with self:
                return inside(*args, **kwargs)
        result = func(*args, **kwargs)
        if any(tensor.is_cuda for tensor in ordered_tensors((args, kwargs, result))):
            raise RecordError(f"what {func} does cannot be seen")
        return result

    def _step(self, func: Any, args: Any, kwargs: Any) -> dict[str, Any] | None:
        try:
            return {
                "kind": "op",
                "op": str(func),
                "args": describe(list(args), self._tensor),
                "kwargs": describe(kwargs, self._tensor)["dict"],
                "stream": self._stream(torch.cuda.current_stream().cuda_stream),
            }
        except RecordError as error:
            self.record.remarks.append(f"{func} is not recorded: {error}")
            return None

    def launched(self, binary: Any, grid: Any, args: Any) -> None:
        key = binary.ttir, binary.num_warps, binary.num_stages, binary.constants
        kernel = self._kernels.setdefault(key, len(self._kernels))
        if kernel == len(self.record.kernels):
            self.record.kernels.append(
                {
                    "name": binary.name,
                    "ttir": binary.ttir,
                    "num_warps": binary.num_warps,
                    "num_stages": binary.num_stages,
                    "constants": [list(constant) for constant in binary.constants],
                }
            )
        self._append(
            {
                "kind": "launch",
                "kernel": kernel,
                "grid": list(grid),
                "args": [self._argument(argument) for argument in args],
                "stream": self._stream(torch.cuda.current_stream().cuda_stream),
            }
        )

    def called(self, method: str, group: Any, args: Any, kwargs: Any) -> Callable[[Any], None]:
        """Record a collective, before it."""

        def argument(value: Any) -> Any:
            options = described_options(value)
            if options is not None:
                return {"options": options}
            if isinstance(value, (list, tuple)):
                return [argument(item) for item in value]
            return describe(value, self._tensor)

        number = len(self.record.steps)
        step = {
            "kind": "collective",
            "method": method,
            "group": ranks_of(group),
            "args": [argument(item) for item in args],
            "stream": self._stream(torch.cuda.current_stream().cuda_stream),
        }
        if kwargs:
            raise RecordError(f"{method} is called with {', '.join(kwargs)} by name")
        self._append(step)

        def know(work: Any) -> None:
            self._kept.append(work)
            self._works[id(work)] = number

        return know

    def replayed(self) -> None:
        """Refuse a CUDA graph, whose work was recorded by nobody."""
        raise RecordError("it replays a CUDA graph")

    def waited(self, work: Any) -> None:
        """Record that the current stream waits for a collective."""
        number = self._works.get(id(work))
        if number is not None:
            stream = self._stream(torch.cuda.current_stream().cuda_stream)
            self._append({"kind": "await", "work": number, "stream": stream})

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, Tensor) and hasattr(value, "data_ptr"):
            base = getattr(value, "base", None)
            if not isinstance(base, Tensor):
                raise RecordError(f"a kernel's argument is a {type(value).__name__}")
            value = base
        return describe(value, self._tensor)

    def _append(self, step: dict[str, Any]) -> None:
        if len(self.record.steps) >= _MOST_STEPS:
            raise RecordError(f"one call launches more than {_MOST_STEPS:,} operations")
        self.record.steps.append(step)

    def marked(self, kind: str, event: int, stream: int) -> None:
        self._append({"kind": kind, "event": event, "stream": self._stream(stream)})

    def _stream(self, handle: int) -> int:
        return self._streams.setdefault(handle, len(self._streams)) if handle else 0

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise RecordError(f"a tensor of layout {tensor.layout}")
        return describe_tensor(tensor, self._number_of(tensor, None))

    def _number_of(self, tensor: Tensor, origin: dict[str, Any] | None) -> int:
        storage = tensor.untyped_storage()
        result = self._numbers.get(storage._cdata) if tensor.is_cuda else None
        if result is not None:
            return result
        number = len(self.record.storages)
        values = {"bytes": storage.nbytes(), "dtype": str(tensor.dtype).removeprefix("torch.")}
        if origin is None:
            origin = {"origin": "state" if tensor.is_cuda else "host"}
            if self._has_data or not tensor.is_cuda:
                data = ctypes.string_at(storage.data_ptr(), storage.nbytes())
                origin |= {"at": self._blob_bytes}
                self._blobs.append(data)
                self._blob_bytes += len(data)
        self.record.storages.append({**values, **origin, "step": len(self.record.steps)})
        if tensor.is_cuda:
            self._numbers[storage._cdata] = number
            self._kept.append(storage)
        return number


def recorded(reference: Callable[..., Any], args: Any) -> Record:
    """Return the record of a reference, called with arguments on the device."""
    recorder = CallRecorder(tensors_of(args), has_data=False)
    with torch.no_grad(), recorder.recording():
        results = reference(*args)
    return recorder.finish(results)


def _leaves(args: Any, kwargs: Any) -> bool:
    """Return whether a copy ends on the host."""
    target = kwargs.get("device")
    if target is not None:
        return bool(torch.device(target).type == "cpu")
    return len(args) > 1 and isinstance(args[1], Tensor) and not args[0].is_cuda
