"""What a campaign asks of a device: the seam behind which a real one is, or a modeled one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kernbench.dtypes import DType
from kernbench.errors import KernbenchError
from kernbench.ops import KernelCall


class NoDeviceError(KernbenchError, RuntimeError):
    """There is no device to measure on; says what is missing."""


class TimedDevice(Protocol):
    """A device that can be timed. Tensors are whatever its kernels take as pointers."""

    @property
    def name(self) -> str:
        """The name that rows of it have in the ``device`` column."""
        ...

    def clock_mhz(self) -> int | None:
        """Return the clock that it runs at now, None if it does not say."""
        ...

    def tensor(self, rows: int, cols: int, dtype: DType) -> Any:
        """Return a row-major matrix of random numbers."""
        ...

    def run(self, call: KernelCall) -> None:
        """Launch a kernel.

        Raises:
            LookupError: The kernel does not fit on the device.
        """
        ...

    def run_product(self, a: Any, b: Any, out: Any) -> None:
        """Launch the vendor's ``out = a @ b``."""
        ...

    def times_us(self, work: Callable[[], None], runs: int) -> list[float]:
        """Return how long ``work`` took each of ``runs`` times, caches being cold before each."""
        ...
