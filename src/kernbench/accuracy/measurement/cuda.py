"""The GPU that PyTorch sees; torch is imported only when a device is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernbench.accuracy.measurement.device import NoDeviceError
from kernbench.dtypes import DType
from kernbench.ops import KernelCall

_FLUSHED_BYTES = 512 << 20
"""Bytes written before every run, more than any cache holds."""


class CudaDevice:
    """The current CUDA device.

    Raises:
        NoDeviceError: PyTorch is missing, or sees no CUDA device.
    """

    def __init__(self, name: str | None = None) -> None:
        try:
            import torch
        except ImportError:
            raise NoDeviceError(
                "measuring needs a GPU and PyTorch with CUDA, but torch is not installed"
            ) from None
        if not torch.cuda.is_available():
            raise NoDeviceError(
                f"measuring needs a GPU, but PyTorch {torch.__version__} sees no CUDA device"
            )
        self._torch: Any = torch
        self._name = name or torch.cuda.get_device_name()
        self._flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    @property
    def name(self) -> str:
        return self._name

    def clock_mhz(self) -> int | None:
        try:
            return int(self._torch.cuda.clock_rate())
        except (ImportError, RuntimeError):
            # NVML's Python package is not installed, or this machine does not permit the query.
            return None

    def tensor(self, rows: int, cols: int, dtype: DType) -> Any:
        torch = self._torch
        kind = getattr(torch, dtype.name)
        return torch.randn(rows, cols, device="cuda", dtype=torch.float32).to(kind)

    def run(self, call: KernelCall) -> None:
        call.on_device()

    def run_product(self, a: Any, b: Any, out: Any) -> None:
        self._torch.mm(a, b, out=out)

    def times_us(self, work: Callable[[], None], runs: int) -> list[float]:
        cuda = self._torch.cuda
        pairs = [
            (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(runs)
        ]
        for start, end in pairs:
            # The host queues the launch while this runs, so the time excludes its overhead.
            self._flushed.zero_()
            start.record()
            work()
            end.record()
        cuda.synchronize()
        return [1e3 * float(start.elapsed_time(end)) for start, end in pairs]
