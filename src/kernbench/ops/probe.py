"""One launch of a kernel, timed on its own: no run, no tensors, no data.

The way is the runtime's: Triton compiles, the evaluator makes the trace, the scheduler times it.
Only the arguments are stand-ins, so that a measured shape may be larger than any host's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from types import SimpleNamespace
from typing import Any

from kernbench.commands import KernelTrace
from kernbench.dtypes import DType
from kernbench.errors import InternalError
from kernbench.hardware import Machine
from kernbench.kernel_ir import evaluate
from kernbench.ops.launches import KernelCall
from kernbench.triton_backend import DeviceRates, KernelBinary, activate


@dataclass(frozen=True, slots=True)
class ProbePointer:
    """An argument that stands for a tensor."""

    dtype: DType

    def data_ptr(self) -> int:
        return 0


class KernelProbe:
    """A stand-in for a run that keeps the traces of launches."""

    cuda_architecture: int | None = None
    counts_warps: bool = False
    warp_lanes: int = 0

    def __init__(self) -> None:
        self._seen: tuple[KernelBinary, tuple[int, int, int], tuple[Any, ...]] | None = None

    def trace(self, call: KernelCall) -> KernelTrace:
        """Return the trace of a launch."""
        with activate(self):
            call.kernel[call.grid](*call.args, **call.options)
        if self._seen is None:
            raise InternalError(f"Triton did not launch {call.kernel.__name__}")
        seen, self._seen = self._seen, None
        return trace_of(*seen)

    def launch(
        self, binary: KernelBinary, grid: tuple[int, int, int], args: tuple[Any, ...]
    ) -> None:
        self._seen = (binary, grid, args)

    def tcm_capacity_bytes(self) -> int:
        """Return unlimited room: the trace says whether a tile fits."""
        return 1 << 62

    def shared_memory_bytes(self) -> int:
        return 1 << 62

    def most_resident(self, binary: KernelBinary) -> int:
        return 1 << 31

    def tunes(self, kept: frozenset[str] | None) -> None:
        """Do nothing: no tuner is judged here."""

    def num_pes(self) -> int:
        return 1

    def device_rates(self) -> DeviceRates:
        return DeviceRates(clock_ghz=1.0, hbm_bytes_per_ns=1.0)

    def latest_ns(self) -> None:
        """Return None: nothing runs."""

    def benchmark_ms(self, fn: Callable[[], Any]) -> float:
        raise InternalError("a kernel that tunes itself cannot be timed on its own")


def trace_of(
    binary: KernelBinary, grid: tuple[int, int, int], args: tuple[Any, ...]
) -> KernelTrace:
    """Return the trace of a launch, given the arguments of the TTIR function."""
    ints = {
        param.index: args[param.index]
        for param in binary.module.kernel.params
        if not param.is_pointer and not (param.dtype and param.dtype.is_floating_point)
    }
    return evaluate(
        binary.module, grid, ints, num_warps=binary.num_warps, num_stages=binary.num_stages
    )


class ShapedTensor:
    """A stand-in for a contiguous tensor, on which functions of this package launch in a probe."""

    def __init__(self, context: LaunchRecorder, shape: tuple[int, ...], dtype: DType) -> None:
        self.context = context
        self.shape = shape
        self.dtype = dtype
        self.sip_id = 0

    def stride(self) -> tuple[int, ...]:
        """Return the strides in elements."""
        strides = accumulate(reversed(self.shape[1:]), mul, initial=1)
        return tuple(reversed(list(strides))) if self.shape else ()

    def data_ptr(self) -> int:
        return 0

    def is_contiguous(self) -> bool:
        return True

    def new_result(self, shape: tuple[int, ...], dtype: DType) -> ShapedTensor:
        return ShapedTensor(self.context, shape, dtype)

    def contiguous(self) -> ShapedTensor:
        return self


class LaunchRecorder:
    """A stand-in for the run of :class:`ShapedTensor` that keeps what is launched."""

    def __init__(self, probe: KernelProbe, machine: Machine) -> None:
        self._probe = probe
        self.machine = machine
        self.traces: list[KernelTrace] = []
        self.run = SimpleNamespace(rank_state=SimpleNamespace(extensions={}))
        self.launcher = self

    def tensor(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return a stand-in for a contiguous tensor."""
        return ShapedTensor(self, tuple(shape), dtype)

    empty = tensor

    def launch(
        self, _: str, kernel: Any, *args: Any, grid: Any, attributes: Any = None, **options: Any
    ) -> None:
        call = KernelCall(kernel, grid, args, options)
        self.traces.append(self._probe.trace(call))

    def launch_named(
        self,
        _: str,
        binary: KernelBinary,
        grid: tuple[int, int, int],
        args: tuple[Any, ...],
        attributes: Any = None,
    ) -> None:
        self.traces.append(trace_of(binary, grid, args))


def record_launches(
    work: Callable[[LaunchRecorder], object], machine: Machine
) -> list[KernelTrace]:
    """Return the traces of the launches of ``work``, which makes its tensors by its argument.

    ``machine`` is whose kernels are taken, where machines take different ones.

    >>> from kernbench import ops
    >>> from kernbench.dtypes import float16
    >>> from kernbench.hardware import load_machine
    >>> len(record_launches(lambda at: ops.matmul(at.tensor((64, 32), float16),
    ...                                           at.tensor((32, 16), float16)),
    ...                     load_machine("ahbm")))
    1
    """
    probe = KernelProbe()
    recorder = LaunchRecorder(probe, machine)
    with activate(probe):
        work(recorder)
    return recorder.traces
