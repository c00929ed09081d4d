"""A run that only writes down what Triton asks of it, and the least that Triton takes as tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernbench.dtypes import DType, as_dtype
from kernbench.triton_backend import KernelBinary
from kernbench.triton_backend.launcher import DeviceRates


class Tensor:
    """All that Triton asks of a tensor: a dtype and an address."""

    def __init__(self, dtype: DType | str, address: int = 4096) -> None:
        self.dtype = as_dtype(dtype)
        self.address = address
        self.shape = (64, 64)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        return (64, 1)


class RecordingLauncher:
    cuda_architecture: int | None = None
    counts_warps: bool = False
    warp_lanes: int = 0

    def __init__(self, tcm_bytes: int = 1 << 40) -> None:
        self.launches: list[tuple[KernelBinary, tuple[int, int, int], tuple[Any, ...]]] = []
        self.benchmarked: list[KernelBinary] = []
        self.tcm_bytes = tcm_bytes

    def launch(
        self, binary: KernelBinary, grid: tuple[int, int, int], args: tuple[Any, ...]
    ) -> None:
        self.launches.append((binary, grid, args))

    def tcm_capacity_bytes(self) -> int:
        return self.tcm_bytes

    def shared_memory_bytes(self) -> int:
        return self.tcm_bytes

    def most_resident(self, binary: KernelBinary) -> int:
        return 24

    def tunes(self, kept: frozenset[str] | None) -> None:
        pass

    def num_pes(self) -> int:
        return 24

    def device_rates(self) -> DeviceRates:
        return DeviceRates(clock_ghz=1.5, hbm_bytes_per_ns=2048.0)

    def latest_ns(self) -> Callable[[], float] | None:
        return lambda: 2000.0

    def benchmark_ms(self, fn: Callable[[], Any]) -> float:
        """Say that the config with the most warps is the fastest; keep nothing of the launch."""
        kept = len(self.launches)
        fn()
        [(binary, _, _)] = self.launches[kept:]
        del self.launches[kept:]
        self.benchmarked.append(binary)
        return 1.0 / binary.num_warps
