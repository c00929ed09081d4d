"""``mode="reduce-overhead"``: what is compiled is captured in CUDA graphs of the bridge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from kernbench.torch_bridge.placement.names import META
from kernbench.torch_bridge.placement.residence import Residence, cpp_place, own_set
from kernbench.torch_bridge.processes.process import current

_OVERWRITTEN = (
    "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. "
    "To prevent overwriting, clone the tensor outside of torch.compile() or call "
    "torch.compiler.cudagraph_mark_step_begin() before each model invocation."
)
"""What PyTorch says."""


class Graphs:
    """The compiled functions of a run that are captured."""

    def __init__(self) -> None:
        self.recorded: set[tuple[int, int]] = set()
        """The ranks and addresses of what graphs return: it stays where it is."""
        self.awaiting: set[int] = set()
        """The ranks whose last forward pass awaits its backward pass."""

    def cudagraphify(
        self,
        model: Any,
        static_input_idxs: Sequence[int] = (),
        *,
        mutated_input_idxs: Sequence[int] = (),
        is_backward: bool = False,
        is_inference: bool = False,
        **options: Any,
    ) -> Any:
        """Inductor's function of that name."""
        graphed = Graphed(self, model, static_input_idxs, mutated_input_idxs)
        if is_backward:
            graphed.is_backward = True
            return self._ending(graphed)
        graphed.is_forward = not is_inference
        return graphed

    def of_backend(self, model: Any, inputs: Any, static_input_idxs: Any, **options: Any) -> Any:
        """What the backend ``cudagraphs`` calls, with inputs to look at."""
        return self.cudagraphify(model, static_input_idxs, **options)

    def _ending(self, backward: Graphed) -> Callable[[list[Any]], Any]:
        def run(inputs: list[Any]) -> Any:
            self.awaiting.discard(current().rank)
            return backward(inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


@dataclass(slots=True)
class _Captured:
    """A function, captured once, and the memory that it reads from and writes to."""

    graph: Any
    held: list[Any]
    outputs: Any
    storages: list[Any] = field(default_factory=list)
    """The storages of the results of its last call: not those of ``outputs``, on their memory."""

    @property
    def is_in_use(self) -> bool:
        """Whether anything holds a result of its last call: the program, or its autograd."""
        return any(torch._C._storage_Use_Count(item._cdata) > 1 for item in self.storages)

    def results(self) -> Any:
        """Return results of a call: other tensors each time, on the same memory."""
        inputs = {_address(item) for item in self.held if isinstance(item, torch.Tensor)}
        storages: dict[int, Any] = {}
        result = [
            _on(storages.setdefault(_address(item), _on_memory_of(item)), item)
            if isinstance(item, torch.Tensor) and _address(item) not in inputs
            else item
            for item in self.outputs
        ]
        self.storages = list(storages.values())
        return result

    def overwrite(self) -> None:
        """Make reading results of the last call an error: they will be another call's."""
        for item in self.storages:
            item._kernbench = _Overwritten(None)
        self.storages = []


def _on_memory_of(tensor: torch.Tensor) -> Any:
    """Return another storage on a tensor's memory, and on its place on the device."""
    storage = tensor.untyped_storage()
    value: Any = (
        torch.UntypedStorage(storage.nbytes(), device=META)
        if cpp_place(storage) == META
        else torch._C._construct_storage_from_data_pointer(
            storage.data_ptr(), cpp_place(storage), storage.nbytes()
        )
    )
    value._kernbench, value._kernbench_owner = storage._kernbench, storage
    return value


def _on(storage: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like another one, on another storage."""
    with no_dispatch():
        result = torch.empty(0, dtype=tensor.dtype, device=cpp_place(storage))
        own_set(result, storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        return result


class _Overwritten(Residence):
    """Where a result was, which is the next call's now: whoever asks gets PyTorch's error."""

    __slots__ = ()

    @property
    def device(self) -> Any:
        raise RuntimeError(_OVERWRITTEN)

    @device.setter
    def device(self, device: Any) -> None:
        pass


class Graphed:
    """A compiled function that is captured at its second call, per rank and layout of inputs.

    One that writes to an input that is copied is not captured: the copy would have it. A call
    overwrites the results of the last one, as a GPU's graph does; but while a backward pass is to
    come that needs them, the function is captured again, in other memory.
    """

    _boxed_call = True

    def __init__(
        self,
        graphs: Graphs,
        model: Callable[[list[Any]], Any],
        static: Sequence[int],
        mutated: Sequence[int],
    ) -> None:
        self._graphs = graphs
        self.is_forward = self.is_backward = False
        """Whether a backward pass follows, and whether it is one."""
        self._model = model
        self._static = frozenset(static)
        """Which inputs stay where they are, as weights do."""
        self._written = frozenset(mutated) - self._static
        self._has_said = False
        self._warm: set[Any] = set()
        self._captured: dict[Any, list[_Captured]] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        if current().capture is not None or self._writes_elsewhere(inputs):
            return self._model(inputs)
        key = self._key_of(inputs)
        if key not in self._warm:
            self._warm.add(key)
            self._await_backward()
            return self._model(list(inputs))
        free_one = self._free_one(key, inputs)
        current().host.owe_for("compiled_replay_ps")
        copied = [at for at, value in enumerate(inputs) if self._is_copied(at, value)]
        if copied:
            # As PyTorch does: one operation for all of them.
            held = [free_one.held[at] for at in copied]
            torch._foreach_copy_(held, [inputs[at] for at in copied])
        free_one.overwrite()
        free_one.graph.replay()
        self._await_backward()
        # Autograd would take a gradient that nothing else uses for its own.
        return list(free_one.outputs) if self.is_backward else free_one.results()

    def _await_backward(self) -> None:
        if self.is_forward:
            self._graphs.awaiting.add(current().rank)

    def _free_one(self, key: Any, inputs: list[Any]) -> _Captured:
        """Return what is captured for inputs, and whose results may be overwritten."""
        captured = self._captured.setdefault(key, [])
        if captured and current().rank not in self._graphs.awaiting:
            return captured[0]
        for item in captured:
            if not item.is_in_use:
                return item
        captured.append(self._capture(inputs))
        return captured[-1]

    def _writes_elsewhere(self, inputs: list[Any]) -> bool:
        rank, recorded = current().rank, self._graphs.recorded
        elsewhere = any((rank, _address(inputs[at])) not in recorded for at in self._written)
        if elsewhere and not self._has_said:
            from torch._inductor import cudagraph_utils

            self._has_said = True
            said = "skipping cudagraphs due to mutated inputs"
            cudagraph_utils.log_cudagraph_skip_and_bump_counter(said)
        return elsewhere

    def _is_copied(self, at: int, value: Any) -> bool:
        return at not in self._static and isinstance(value, torch.Tensor)

    def _key_of(self, inputs: list[Any]) -> Any:
        return current().rank, tuple(
            (tuple(item.shape) if self._is_copied(at, item) else item.data_ptr())
            if isinstance(item, torch.Tensor)
            else item
            for at, item in enumerate(inputs)
        )

    def _capture(self, inputs: list[Any]) -> _Captured:
        held = [
            item.clone() if self._is_copied(at, item) else _lasting(item)
            for at, item in enumerate(inputs)
        ]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            capture = self._model(list(held))
        results = [item for item in capture if isinstance(item, torch.Tensor)]
        self._graphs.recorded.update((current().rank, _address(item)) for item in results)
        return _Captured(graph, held, capture)


def _lasting(value: Any) -> Any:
    """Return an input that stays where it is, but not as the result of one call of a graph."""
    if isinstance(value, torch.Tensor) and hasattr(value.untyped_storage(), "_kernbench_owner"):
        return _on(_on_memory_of(value), value)
    return value


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
