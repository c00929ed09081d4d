"""The driver half of the plug-in: what Triton's runtime asks of a device, answered by a run."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from triton.backends.driver import DriverBase

if TYPE_CHECKING:
    from kernbench.triton_backend.launcher import Launcher

DEVICE_KEY = "cpu"
"""What Triton keys its in-memory kernel caches by: PyTorch's name for its CPU, which stands for the
device (ADR-0040), so that host code which looks into them by ``torch.cpu.current_device()`` finds
them. GPU drivers use integers, so a kernel compiled for a GPU is never met here; one key for all
SIPs, so a kernel compiles once."""

_WAVES_KEY = "waves"
"""The same for machines that are GPUs and no CUDA devices: shared memory is allocated otherwise."""


# Triton has one active driver for the whole process; runs in several threads each have their own.
ENTERED: ContextVar[Launcher | None] = ContextVar("kernbench_launcher", default=None)

_NUM_REGS = 32
"""What a kernel says it needs per thread. A PE has no registers; host code that divides a GPU's
register file by this gets an ordinary occupancy."""

_HBM_BUS_BITS = 1024


class _CudaKeys(dict[int, str]):
    """Stands for the device of a machine that announces itself as CUDA."""

    def __missing__(self, architecture: int) -> str:
        text = self[architecture] = f"cuda:{architecture}"
        return text


_CUDA_KEYS = _CudaKeys()


class KernbenchDriver(DriverBase):  # type: ignore[misc]  # Triton ships no types
    """Stands for all devices of one run. Made by ``activate``, never by Triton itself."""

    def __init__(self, launcher: Launcher, torch_device: str = "cpu") -> None:
        from kernbench.triton_backend.launcher import CompiledLauncher

        self.launcher = launcher
        self._torch_device = torch_device
        self.launcher_cls = CompiledLauncher
        self.utils = _BinaryLoader()
        self.previous: Any = None
        """The driver, or None, that was active when this one took over."""
        self.has_warned = False
        """Whether the program heard that what it timed launches nothing."""
        self.announced: Any = None
        """The target that programs are told, if it is not kernbench's own."""

    @staticmethod
    def is_active() -> bool:
        """Return False: Triton must never choose kernbench by itself, a run activates it."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> Any:
        """Return the target as the caller should see it (ADR-0006).

        Triton chooses the compiler by the answer; a program and the kernels that it compiles choose
        only their own way.
        """
        from kernbench.kernel_ir import NO_CUDA
        from kernbench.triton_backend.compiler import compile_target, cuda_target

        architecture = self._architecture()
        asking = str(sys._getframe(1).f_globals.get("__name__"))
        is_program = asking.split(".")[0] != "triton"
        if is_program and self.announced is not None:
            return self.announced
        if architecture is not None and (is_program or asking.startswith("triton.language.")):
            return cuda_target(architecture)
        return compile_target(NO_CUDA if self._has_waves() else architecture)

    def _architecture(self) -> int | None:
        return (ENTERED.get() or self.launcher).cuda_architecture

    def _has_waves(self) -> bool:
        """Return whether PEs count warps and the machine is no CUDA device."""
        launcher = ENTERED.get() or self.launcher
        return launcher.counts_warps and launcher.cuda_architecture is None

    def get_current_device(self) -> str:
        # What a kernel is told of the target may decide what it compiles to.
        architecture = self._architecture()
        if architecture is not None:
            return _CUDA_KEYS[architecture]
        return _WAVES_KEY if self._has_waves() else DEVICE_KEY

    def set_current_device(self, device: Any) -> None:
        """Ignored: ``torch.ahbm.set_device`` binds a rank to its SIP."""

    def get_current_stream(self, device: Any) -> int:
        """Return 0: a launch always goes to the stream of the SIP that its rank is bound to."""
        return 0

    def get_active_torch_device(self) -> Any:
        """Return where PyTorch's tensors are for the kernels, or None without PyTorch.

        Only a program that has imported PyTorch can do something with the answer. In most runs it
        is the CPU, whose tensors stand for the device's.
        """
        torch = sys.modules.get("torch")
        if torch is None or self._torch_device == "cpu":
            return None if torch is None else torch.device("cpu")
        return torch.device(self._torch_device, torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        """Return ``torch.cuda`` where its events and streams are in modeled time."""
        if self._torch_device == "cpu":
            return _DeviceInterface
        return sys.modules["torch"].cuda

    def get_empty_cache_for_benchmark(self) -> None:
        """Return None: every modeled launch starts with a cold cache."""

    def clear_cache(self, cache: Any) -> None:
        """Nothing to clear, see above."""

    def get_benchmarker(self) -> Callable[..., float | list[float]]:
        return _benchmark


class _DeviceInterface:
    """What Triton takes for ``torch.cuda``: enough to ask for a device, but no clock."""

    @staticmethod
    def current_device() -> str:
        return DEVICE_KEY

    @staticmethod
    def synchronize() -> None:
        """Nothing to wait for: reading a tensor waits for it."""

    @staticmethod
    def Event(**options: Any) -> Any:  # noqa: N802 - the name in torch.cuda
        from kernbench.errors import UsageError

        raise UsageError(
            "an event of a GPU measures no modeled time; call triton.testing.do_bench by that "
            "name (one that was imported from triton.testing before the run began is Triton's "
            "own), or read the times of kernels from the report"
        )


class _BinaryLoader:
    """The ``utils`` of a driver. A binary is TTIR text, which is read at its first launch."""

    def __init__(self) -> None:
        self._holders: list[weakref.ref[Any]] = []

    def load_binary(
        self, name: str, ttir: bytes | str, shared: int, device: Any
    ) -> tuple[str, bytes | str, int, int, int]:
        # Reading it here would hide errors: Triton marks a kernel as loaded before it calls this,
        # and would launch it with no binary the second time.
        holder = sys._getframe(1).f_locals.get("self")
        if hasattr(holder, "module"):
            self._holders.append(weakref.ref(holder))
        return name, ttir, _NUM_REGS, 0, 1 << 31

    def release(self) -> None:
        """Unload the kernels that were loaded in this run; the next run loads them again.

        A compiled kernel that dies later asks the driver that is active *then* to unload it: a
        GPU's driver, which knows nothing of it, or none, which is an error without a GPU. Triton
        tells a driver nothing about the kernel object, so it is found as the caller.
        """
        for reference in self._holders:
            holder = reference()
            if holder is not None:
                holder.module = None
        self._holders.clear()

    def unload_module(self, module: Any) -> None:
        """Nothing is held on a device."""

    def get_device_properties(self, device: Any) -> dict[str, int]:
        """Return what kernels' host code sizes itself by: PEs as multiprocessors."""
        from kernbench.triton_backend.launcher import active_launcher

        launcher = active_launcher()
        rates = launcher.device_rates()
        # Triton's get_dram_gbps multiplies clock, width and two edges.
        hbm_khz = rates.hbm_bytes_per_ns * 8e6 / 2 / _HBM_BUS_BITS
        return {
            "max_shared_mem": launcher.shared_memory_bytes(),
            "multiprocessor_count": launcher.num_pes(),
            "max_num_regs": 65536,
            "max_threads_per_sm": 2048,
            "warpSize": 32,
            "sm_clock_rate": round(rates.clock_ghz * 1e6),
            "mem_clock_rate": round(hbm_khz),
            "mem_bus_width": _HBM_BUS_BITS,
        }


def _benchmark(
    kernel_call: Callable[[], Any], *, quantiles: Sequence[float] | None = None, **options: Any
) -> float | list[float]:
    """Return the modeled milliseconds of a call, once per quantile: modeled time does not vary.

    ``triton.autotune`` keeps the benchmarker of its first run for ever, so this one hands the
    question on when another driver is active by then.
    """
    from triton.runtime import driver as triton_driver

    from kernbench.triton_backend.launcher import active_launcher

    driver = triton_driver.active
    if not isinstance(driver, KernbenchDriver):
        result: float | list[float] = driver.get_benchmarker()(
            kernel_call, quantiles=quantiles, **options
        )
        return result
    milliseconds = active_launcher().benchmark_ms(kernel_call)
    return milliseconds if quantiles is None else [milliseconds] * len(quantiles)


# As in compiler.py: a new abstract method in Triton must not break `import triton`.
KernbenchDriver.__abstractmethods__ = frozenset()
