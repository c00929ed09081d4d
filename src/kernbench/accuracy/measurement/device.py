"""The interface of a device under measurement, implemented by real and modeled ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kernbench.dtypes import DType
from kernbench.errors import KernbenchError
from kernbench.ops import KernelCall


class NoDeviceError(KernbenchError, RuntimeError):
    """There is no device to measure on; the text names what is missing."""


class TimedDevice(Protocol):
    """A device that can be timed. Its tensors are whatever its kernels take as pointers."""

    @property
    def name(self) -> str:
        """The name of the device in the ``device`` column of rows."""
        ...

    def clock_mhz(self) -> int | None:
        """Return its current clock, None if it is not reported."""
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
        """Return the times of ``runs`` runs of ``work``, each starting with cold caches."""
        ...
