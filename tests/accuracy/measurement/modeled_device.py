"""A device whose times are the model's: what a campaign would see on a device that is a preset."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.dtypes import DType, bfloat16
from kernbench.hardware import Machine, load_library
from kernbench.kernel_time import schedule_kernel
from kernbench.library_kernels import Product, product_kernels, times_of
from kernbench.ops import KernelCall, KernelProbe, ProbePointer


class ModeledDevice:
    """Launches nothing; every launch takes what the model says, times a factor per run."""

    def __init__(self, machine: Machine, noise: Sequence[float] = (1.0,)) -> None:
        self.machine = machine
        self.noise = noise
        self.launched: list[KernelCall] = []
        self._sizes: dict[int, tuple[int, int]] = {}
        self._probe = KernelProbe()
        self._passed_ps = 0

    @property
    def name(self) -> str:
        return self.machine.spec.devices[0]

    def clock_mhz(self) -> int | None:
        return 1755

    def tensor(self, rows: int, cols: int, dtype: DType) -> ProbePointer:
        probe_pointer = ProbePointer(dtype)
        self._sizes[id(probe_pointer)] = rows, cols
        return probe_pointer

    def run(self, call: KernelCall) -> None:
        trace = self._probe.trace(call)
        # A kernel that needs more than there is does not run, as on a GPU.
        if (
            trace.staged_bytes
            > self.machine.sip.tcm_bytes - 1024 * self.machine.sip.pe.register_kib
        ):
            raise LookupError("out of resource: shared memory")
        self.launched.append(call)
        self._passed_ps += schedule_kernel(trace, self.machine, 0).duration_ps

    def run_product(self, a: ProbePointer, b: ProbePointer, out: ProbePointer) -> None:
        (m, k), (_, n) = self._sizes[id(a)], self._sizes[id(b)]
        product = Product(m=m, n=n, k=k, dtype=bfloat16.name, part_bytes=2)
        library = load_library(self.machine.spec.kernel_library or "")
        launches = product_kernels(product, self.machine.sip, library).kernels
        times = times_of(launches, self.machine.sip, library, queued=True)
        self._passed_ps += sum(int(time.total_us * 1e6) for time in times)

    def times_us(self, work: Callable[[], None], runs: int) -> list[float]:
        self._passed_ps = 0
        work()
        return [self._passed_ps / 1e6 * self.noise[i % len(self.noise)] for i in range(runs)]
