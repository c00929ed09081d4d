"""What the compiler tries on a device to choose: in modeled time, without a trace in the run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.dispatch.observe import Observer
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, with_index
from kernbench.torch_bridge.placement.residence import settle
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.compiling import COMPILING, Views
from kernbench.torch_bridge.processes.process import current

_PS_PER_MS = 1e9


@contextmanager
def at_runtime(views: Views) -> Iterator[None]:
    """Run a program's code in the middle of compiling, observed as usual."""
    with views.running(), _disable_current_modes(), Observer(current()):
        yield


def modeled_ms(views: Views, function: Callable[[], Any]) -> float:
    """Return the modeled device time of all that a function launches, in milliseconds."""
    times_ps: list[int] = []
    with at_runtime(views) if COMPILING.depth else nullcontext(), _trying(times_ps):
        function()
    return sum(times_ps) / _PS_PER_MS


def _trying(times_ps: list[int]) -> AbstractContextManager[None]:
    """Add the modeled times of what is launched to a list, in the place of launching it."""
    return current().host.trying(lambda template: times_ps.append(template.duration_ps))


def install(patches: Patches, views: Views) -> None:
    """Let the compiler's benchmarks measure modeled time."""
    from torch._dynamo.metrics_context import RuntimeMetricsContext
    from torch._dynamo.variables.optimizer import OptimizerVariable
    from torch._inductor import autotune_process
    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime import benchmarking
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    def benchmark(self: Any, function: Callable[[], Any], *args: Any, **kwargs: Any) -> float:
        return modeled_ms(views, function)

    for owner in vars(benchmarking).values():
        if isinstance(owner, type) and issubclass(owner, benchmarking.Benchmarker):
            for name in vars(owner):
                if name.startswith("benchmark_gpu"):
                    patches.set(owner, name, benchmark)
    patches.wrap(AlgorithmSelectorCache, "generate_example_value", _on_device)
    patches.wrap(AlgorithmSelectorCache, "get_inputs", _tried, views)
    patches.wrap(pad_mm, "_should_pad", _tried, views)
    # Of functions of PyTorch it first looks at a result, which lies as the host's would otherwise.
    request = getattr(autotune_process, "ExternKernelBenchmarkRequest", None)
    if request is not None:
        patches.wrap(request, "benchmark", _tried, views)
    patches.wrap(TritonScheduling, "benchmark_codegened_module", _fusion_tried, views)
    patches.wrap(CachingAutotuner, "autotune_to_one_config", _off_the_timeline)
    patches.wrap(CachingAutotuner, "coordinate_descent_tuning", _off_the_timeline)
    noted = _noted_off_the_timeline(RuntimeMetricsContext.finish)
    patches.set(RuntimeMetricsContext, "finish", unseen(noted, is_python=True))
    patches.wrap(CachingAutotuner, "copy_args_to_cpu_if_needed", _unread)
    # Dynamo itself makes the state of an optimizer, of real tensors.
    call_method = OptimizerVariable.call_method
    patches.set(OptimizerVariable, "call_method", _initialized_at_runtime(views, call_method))


def _off_the_timeline(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Choose among candidates at a kernel's first launch, in no time of the run.

    That is more than the launches: arguments that are copied out of the way, and clocks.
    """
    with _trying([]):
        return original(*args, **kwargs)


def _noted_off_the_timeline(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what notes what a graph's call has tuned, with clocks, where it has tuned anything."""

    def finish(self: Any) -> None:
        if self._metrics:
            _off_the_timeline(original, self)

    return finish


def _unread(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Copy a kernel's arguments to the host, from where they come back after it.

    Without data such a copy takes no memory: it would be gigabytes of zeros, for each candidate.
    """
    process = current()
    process.reads_copies = False
    try:
        return original(*args, **kwargs)
    finally:
        process.reads_copies = True


def _on_device(
    original: Callable[..., Any], size: Any, stride: Any, device: Any, *args: Any, **kwargs: Any
) -> Any:
    """Make a tensor to try something with, on its device where PyTorch's conversions lose that."""
    result = original(size, stride, device, *args, **kwargs)
    if torch.device(device).type == DEVICE_TYPE and device_of(result).type != DEVICE_TYPE:
        settle(result, with_index(device), "aten.empty")
    return result


def _tried(original: Callable[..., Any], views: Views, *args: Any, **kwargs: Any) -> Any:
    """Make tensors to try something with, or try it, on a device: observed."""
    with at_runtime(views), _trying([]):
        return original(*args, **kwargs)


def _fusion_tried(
    original: Callable[..., Any], views: Views, self: Any, mod: Any, *args: Any, **kwargs: Any
) -> Any:
    """Launch and time a kernel that Inductor may fuse, and keep its time in a file.

    That file is of the kernel alone, but its time is of a machine.
    """
    Path(mod.__file__).with_suffix(".kernel_perf").unlink(missing_ok=True)
    return _tried(original, views, self, mod, *args, **kwargs)


def _initialized_at_runtime(views: Views, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        init = getattr(type(self.value), "_init_group", None)
        if name != "_init_group" or init is None:
            return original(self, tx, name, args, kwargs)

        def init_group(*value: Any, **named: Any) -> Any:
            with at_runtime(views):
                return init(self.value, *value, **named)

        vars(self.value)["_init_group"] = init_group
        try:
            return original(self, tx, name, args, kwargs)
        finally:
            vars(self.value).pop("_init_group", None)

    return call_method
