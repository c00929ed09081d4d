"""Which of its kernels a library takes: the one that is modeled to be fastest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernbench.library_kernels.engine import KernelTime, time_kernel

if TYPE_CHECKING:
    from kernbench.hardware import KernelLibrary, SipSpec
    from kernbench.library_kernels.work import LibraryKernel


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The launches that a library makes, one after another, and the time of each."""

    kernels: tuple[LibraryKernel, ...]
    times: tuple[KernelTime, ...]

    @property
    def total_us(self) -> float:
        return sum(each.total_us for each in self.times)


def fastest(
    candidates: Iterable[tuple[LibraryKernel, ...]], sip: SipSpec, library: KernelLibrary
) -> KernelChoice:
    """Return the launches that take least time; the first of those that take the same.

    Raises:
        UnknownNameError: The architecture has none of these kernels.
        MachineError: The machine has no rate for a dtype.
    """
    best: KernelChoice | None = None
    for kernels in candidates:
        times = tuple(
            time_kernel(each, sip, library.constants(each.name), queued=number > 0)
            for number, each in enumerate(kernels)
        )
        found = KernelChoice(kernels, times)
        if best is None or found.total_us < best.total_us:
            best = found
    assert best is not None, "a library has at least one kernel"
    return best
