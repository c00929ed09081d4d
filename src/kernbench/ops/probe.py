"""One launch of a kernel, timed on its own: no run, no tensors, no data.

The way is the runtime's: Triton compiles, the evaluator makes the trace, the scheduler times it.
Only the arguments are stand-ins, so that a measured shape may be larger than any host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import mul
from types import SimpleNamespace
from typing import Any

import triton
from triton.runtime.errors import OutOfResources

from kernbench.commands import KernelTrace
from kernbench.dtypes import DType
from kernbench.errors import InternalError
from kernbench.hardware import Machine
from kernbench.kernel_ir import evaluate
from kernbench.ops.base import scalar_functions as fn
from kernbench.ops.base.layout import row_blocks
from kernbench.ops.base.promotion import compute_dtype
from kernbench.ops.elementwise import elementwise_flat
from kernbench.ops.fused import residual_norm_rows
from kernbench.ops.normalization import layer_norm_rows, softmax_rows
from kernbench.ops.products.gemm_tiles import GemmTile, sum_parts, sum_parts_launch
from kernbench.triton_backend import DeviceRates, KernelBinary, activate

_BLOCK = 1024
_EPS = 1e-5

# What every element is, and of how many operands.
_ELEMENTWISE = {
    "add": (fn.add, 2),
    "mul": (fn.mul, 2),
    "relu": (fn.relu, 1),
    "relu_squared": (fn.relu_squared, 1),
    "gelu": (fn.gelu, 1),
    "silu_mul": (fn.silu_mul, 2),
}
ELEMENTWISE_OPS = frozenset(_ELEMENTWISE)
ROW_OPS = frozenset({"softmax", "layernorm", "rmsnorm", "add_rmsnorm"})


@dataclass(frozen=True, slots=True)
class KernelCall:
    """``kernel[grid](*args, **options)``."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    def on_device(self) -> None:
        """Launch it on Triton's active driver, compiled as a GPU needs it.

        The same function, but specialized on sizes, strides and addresses that are multiples of 16,
        without which a GPU's compiler cannot use wide accesses.

        Raises:
            LookupError: It needs more of a resource than the device has.
        """
        try:
            _specialized(self.kernel)[self.grid](*self.args, **self.options)
        except OutOfResources as error:
            raise LookupError(str(error)) from None


@cache
def _specialized(kernel: Any) -> Any:
    return triton.jit(kernel.fn)


def product_call(
    a: Any, b: Any, out: Any, sizes: tuple[int, int, int], dtype: DType, tile: GemmTile
) -> KernelCall:
    """Return the GEMM of two row-major matrices, sizes M, N, K; with split-K, of its parts."""
    m, n, k = sizes
    pointers, numbers = tile.arguments((a, b, out), sizes, (k, 1, n, 1), n)
    return KernelCall(tile.kernel, tile.grid(m, n), (*pointers, *numbers), tile.constants(dtype))


def sum_parts_call(out: Any, parts: Any, size: int, split: int) -> KernelCall:
    """Return the launch that sums the parts of split-K."""
    grid, options = sum_parts_launch(size, split)
    return KernelCall(sum_parts, grid, (out, parts, size), options)


def elementwise_call(
    op: str, out: Any, operands: Sequence[Any], dtype: DType, size: int
) -> KernelCall:
    """Return one of :data:`ELEMENTWISE_OPS` on ``size`` consecutive elements.

    It takes as many of ``operands`` as it needs: two at most.
    """
    function, count = _ELEMENTWISE[op]
    slots = (*operands[:count], *(None,) * (3 - count))
    options = {"COMPUTE": compute_dtype(dtype), "FUNCTION": function, "BLOCK": _BLOCK}
    return KernelCall(elementwise_flat, (triton.cdiv(size, _BLOCK),), (out, *slots, size), options)


def rows_call(
    op: str,
    out: Any,
    operands: Sequence[Any],
    dtype: DType,
    rows: int,
    cols: int,
) -> KernelCall:
    """Return one of :data:`ROW_OPS`.

    ``operands`` are the rows, then a weight, then a bias or (for ``add_rmsnorm``) a residual; an
    operation takes what it needs.
    """
    x, weight, other = operands[0], *operands[1:3]
    blocks = row_blocks(rows, cols)
    options = {"COMPUTE": compute_dtype(dtype), **blocks}
    strides = (rows, cols, cols, 1, cols, 1)
    kernel: Any
    args: tuple[Any, ...]
    if op == "softmax":
        kernel, args = softmax_rows, (out, x, *strides)
    elif op in ("rmsnorm", "add_rmsnorm"):
        total, residual = (x, other) if op == "add_rmsnorm" else (None, None)
        kernel = residual_norm_rows
        args = (total, out, x, None, residual, weight, None, _EPS, rows, cols, cols, 1, cols, 1)
        options["CENTRED"] = False
    else:
        kernel, args = layer_norm_rows, (out, x, weight, other, _EPS, *strides, 1, 1)
    return KernelCall(kernel, (triton.cdiv(rows, blocks["BLOCK_M"]),), args, options)


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
