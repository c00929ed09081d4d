"""Which of its kernels a library takes: the one that is modeled to be fastest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernbench.errors import MachineError
from kernbench.hardware import KernelLibrary, SipSpec
from kernbench.library_kernels.engine import KernelTime, time_kernel
from kernbench.library_kernels.reuse import Reuse
from kernbench.library_kernels.work import LibraryKernel


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The launches that a library makes, one after another, and the time of each."""

    kernels: tuple[LibraryKernel, ...]
    times: tuple[KernelTime, ...]

    @property
    def total_us(self) -> float:
        return sum(time.total_us for time in self.times)


def fastest(
    candidates: Iterable[tuple[LibraryKernel, ...]], sip: SipSpec, library: KernelLibrary
) -> KernelChoice:
    """Return the launches that take least time; the first of those that take the same.

    Raises:
        UnknownNameError: The architecture has none of these kernels.
        MachineError: The machine has no rate for a dtype, or there is no candidate.
    """
    choices = (KernelChoice(kernels, times_of(kernels, sip, library)) for kernels in candidates)
    best = min(choices, key=lambda choice: choice.total_us, default=None)
    if best is None:
        raise MachineError(f"no kernel of {library.architecture} can do what is asked for")
    return best


def times_of(
    kernels: Sequence[LibraryKernel],
    sip: SipSpec,
    library: KernelLibrary,
    queued: bool = False,
    reuse: Reuse | None = None,
) -> tuple[KernelTime, ...]:
    """Return the time of each of several launches in turn; ``queued``: the first follows another.

    ``reuse`` says what each finds in the cache, of an eager program.

    Launches of one kernel are timed once: of a loop over groups there are thousands.
    """
    known: dict[tuple[int, bool], KernelTime] = {}
    times = []
    for number, kernel in enumerate(kernels):
        key = (id(kernel), queued or number > 0)
        if key not in known:
            known[key] = time_kernel(
                kernel, sip, library.constants(kernel.name), queued=key[1], reuse=reuse
            )
        times.append(known[key])
    return tuple(times)
