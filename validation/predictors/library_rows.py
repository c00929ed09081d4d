"""Rows of vendor libraries' kernels: what a row measured, and the time of the launches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import KernbenchError, MachineError
from kernbench.hardware import KernelLibrary, Machine
from kernbench.library_kernels import LibraryKernel, time_kernel
from validation.kernels import load_library

Libraries = Callable[[str], KernelLibrary]
"""From an architecture to its kernels."""


class NotModeledError(KernbenchError):
    """A row asks for what no kernel of a library is described for; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernels:
    """What a row measured."""

    kernels: tuple[LibraryKernel, ...]
    """Launches, one after another."""
    machine: Machine
    choices: tuple[tuple[LibraryKernel, ...], ...] = ()
    """Launches that follow, of which the library takes the fastest; none when empty."""
    other: tuple[LibraryKernel, ...] = ()
    """What another release launched in place of ``kernels``, where a row is the mean of both; none
    when empty."""
    less: tuple[LibraryKernel, ...] = ()
    """Launches whose time the source took off: what it gives is a difference."""
    extra_us: float = 0.0
    """What the source's way of measuring adds."""
    least_us: float = 0.0
    """What a launch through the source's framework takes at least."""
    least_share: float = 1.0
    """How much of what is missing to ``least_us`` a row shows: less than all where it is a median
    over releases of which only some were launched so."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the kernels that may be launched, each once."""
        launched = (
            *self.kernels,
            *self.other,
            *self.less,
            *(library_kernel for choice in self.choices for library_kernel in choice),
        )
        return tuple(dict.fromkeys(library_kernel.name for library_kernel in launched))

    @property
    def architecture(self) -> str:
        """Whose kernels run.

        Raises:
            MachineError: The machine names no library.
        """
        kernel_library = self.machine.spec.kernel_library
        if kernel_library is None:
            raise MachineError(f"machine {self.machine.name} names no kernel_library")
        return kernel_library

    def time_us(self, libraries: Libraries = load_library) -> float:
        """Return the modeled time."""
        library = libraries(self.architecture)
        fastest = min((self._sum_us(choice, library) for choice in self.choices), default=0.0)
        launched = self._sum_us(self.kernels, library) - self._sum_us(self.less, library)
        if self.other:
            launched = (launched + self._sum_us(self.other, library)) / 2
        device_us = self.extra_us + launched + fastest
        return device_us + self.least_share * max(self.least_us - device_us, 0.0)

    def _sum_us(self, kernels: tuple[LibraryKernel, ...], library: KernelLibrary) -> float:
        sip = self.machine.sip
        return sum(
            time_kernel(kernel, sip, library.constants(kernel.name)).total_us for kernel in kernels
        )


class LibraryPredictor(ABC):
    """Answers rows of a category by the kernels that a library launches for them."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines

    @abstractmethod
    def measured(self, row: Row) -> MeasuredKernels:
        """Return what a row measured.

        Raises:
            NotModeledError: No kernel is described for it.
        """

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of what the row measured."""
        try:
            measured = self.measured(row)
            return Answer(measured.time_us(), how=" + ".join(measured.names), ran=Ran.LIBRARY)
        except KernbenchError as error:
            return Answer(None, str(error).split(";")[0])
