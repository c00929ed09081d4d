"""A launcher that replays each kernel at once, so that real Triton kernels meet numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.checks import Checks
from kernbench.dtypes import as_dtype
from kernbench.kernel_ir import evaluate
from kernbench.memory import DeviceMemory
from kernbench.replay import PointerArg, run_kernel
from kernbench.sanitizer import Launched, Sanitizer
from kernbench.triton_backend import DeviceRates, KernelBinary


class Tensor:
    """A numpy array in device memory; views share its buffer."""

    def __init__(self, array: np.ndarray[Any, Any], memory: DeviceMemory) -> None:
        self.dtype: Any = as_dtype(array.dtype)
        self.shape = array.shape
        self.buffer = memory.allocate(array.nbytes, f"tensor {array.shape}")
        self.buffer.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def data_ptr(self) -> int:
        return self.buffer.address

    def stride(self) -> tuple[int, ...]:
        strides = [1]
        for length in reversed(self.shape[1:]):
            strides.insert(0, strides[0] * length)
        return tuple(strides)

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.buffer.bytes.view(self.dtype.numpy).reshape(self.shape)


class ExecutingLauncher:
    cuda_architecture: int | None = None
    counts_warps: bool = False
    warp_lanes: int = 0

    def __init__(self) -> None:
        self.sanitizer: Sanitizer | None = Sanitizer(Checks.of())
        self.memory = DeviceMemory(0, 1 << 36, has_data=True)

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return Tensor(array, self.memory)

    def latest_ns(self) -> None:
        """It has no times."""

    def launch(
        self, binary: KernelBinary, grid: tuple[int, int, int], args: tuple[Any, ...]
    ) -> None:
        is_float = [param.type.is_float for param in binary.module.kernel.params]
        ints = {
            index: int(arg)
            for index, arg in enumerate(args)
            if isinstance(arg, int) and not is_float[index]
        }
        trace = evaluate(
            binary.module, grid, ints, num_warps=binary.num_warps, num_stages=binary.num_stages
        )
        params = [PointerArg(arg.buffer) if isinstance(arg, Tensor) else arg for arg in args]
        if self.sanitizer is None:
            run_kernel(trace, params)
        else:
            self.sanitizer.run(trace, params, Launched(binary.name))
        self.last = trace

    def tcm_capacity_bytes(self) -> int:
        return 1 << 40

    def device_rates(self) -> DeviceRates:
        return DeviceRates(clock_ghz=1.0, hbm_bytes_per_ns=1.0)

    def shared_memory_bytes(self) -> int:
        return 1 << 40

    def most_resident(self, binary: KernelBinary) -> int:
        return 1 << 31

    def tunes(self, kept: frozenset[str] | None) -> None:
        """Do nothing: no tuner is judged here."""

    def num_pes(self) -> int:
        return 24

    def benchmark_ms(self, fn: Callable[[], Any]) -> float:
        raise NotImplementedError
