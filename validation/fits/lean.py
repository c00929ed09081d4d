"""Leave out the constants of kernels that too few rows, or too little of their time, ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernbench.accuracy.rows import Row
from kernbench.hardware import KernelConstants, KernelLibrary, known_libraries
from validation.fits.kernel_fit import KernelFit, RowsOfKernels, fitted, rows_of_kernels
from validation.kernels import load_library


def lean_library(
    architecture: str,
    rows: Sequence[Row],
    only: Sequence[str],
    price: float,
    say: Callable[[str], None] = lambda line: None,
) -> KernelFit:
    """Return an architecture's kernels, with no constant that is worth less than ``price``.

    A constant is worth what errors grow by without it (logarithms of time, summed over the rows
    that constants are fitted to), when the kernel's others are fitted anew; 0.1 is a tenth of one
    row's time. An entry that is worth no more than another architecture's is ``like`` that.
    """
    library = load_library(architecture)
    parts = kept, _ = rows_of_kernels(architecture, rows, only)
    for name in kept.names(only):
        if not library.constants(name).given:
            continue
        of_kernel = kept.launching(name)
        leaner = _Leaner(library, name, of_kernel, price)
        constants = leaner.like_another() or leaner.with_fewer()
        before, after = (item.given for item in (library.constants(name), constants))
        if len(after) < len(before):
            say(f"  {name}: {len(before)} -> {len(after)} {constants.like or ', '.join(after)}")
            library = library.changed({name: constants})
    return KernelFit(library, (), *(part.errors(library) for part in parts))


class _Leaner:
    def __init__(
        self, library: KernelLibrary, kernel: str, rows: RowsOfKernels, price: float
    ) -> None:
        self._library = library
        self._kernel = kernel
        self._rows = rows
        self._price = price
        self._constants = self._fitted(library.constants(kernel))

    def _error(self, constants: KernelConstants) -> float:
        times_us = self._rows.modeled_us(self._library.changed({self._kernel: constants}))
        return float(np.abs(np.log(times_us / self._rows.times_us)).sum())

    def like_another(self) -> KernelConstants | None:
        """Return another architecture's constants, if these are not worth theirs."""
        own, kernel = self._library.architecture, self._kernel
        most = self._error(self._constants) + self._price * len(self._constants.given)
        source = f"of {len(self._rows.rows)} rows here too few differ"
        best = None
        for architecture in known_libraries():
            other = load_library(architecture)
            if architecture == own or kernel not in other.names() or other.constants(kernel).like:
                continue
            entry = {"like": architecture, "source": f"assumed: as {architecture}; {source}"}
            tried = KernelConstants.model_validate(entry).over(other.constants(kernel))
            error = self._error(tried)
            if error <= most:
                best, most = tried, error
        return best

    def with_fewer(self) -> KernelConstants:
        """Return the kernel's constants without those that are worth too little."""
        constants, error = self._constants, self._error(self._constants)
        while len(constants.given) > 1:
            tried = [self._without(constants, key) for key in constants.given]
            errors = [self._error(item) for item in tried]
            cheapest = int(np.argmin(errors))
            if errors[cheapest] > error + self._price:
                break
            constants, error = tried[cheapest], errors[cheapest]
        return constants

    def _without(self, constants: KernelConstants, key: str) -> KernelConstants:
        like, kernel = constants.like, self._kernel
        base = load_library(like).constants(kernel) if like else KernelConstants(source="assumed")
        kept = constants.model_dump(include={*constants.given} - {key})
        entry = {**kept, "like": like, "source": "assumed"}
        return self._fitted(KernelConstants.model_validate(entry).over(base))

    def _fitted(self, constants: KernelConstants) -> KernelConstants:
        library = self._library.changed({self._kernel: constants})
        keys = [(self._kernel, key) for key in constants.given]
        return fitted(library, self._rows, keys).constants(self._kernel)
