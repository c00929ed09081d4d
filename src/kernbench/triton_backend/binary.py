"""A compiled kernel as a run sees it: its TTIR, read once, and what it needs of a PE."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from triton.runtime.errors import OutOfResources

from kernbench.errors import OutOfMemoryError
from kernbench.kernel_ir import Module, TcmTile, TcmUse, parse_module, tcm_use


@dataclass(frozen=True, eq=False)
class KernelBinary:
    """One specialisation of a kernel with its launch options. Identity is the object itself."""

    name: str
    module: Module
    """Shared by all binaries with the same TTIR text."""
    num_warps: int
    num_stages: int
    signature: tuple[str, ...]
    """Triton's type of each parameter of the TTIR function, such as ``*fp16`` or ``i32``."""
    tcm: TcmUse
    constants: tuple[tuple[str, str], ...]
    """Name and value of each parameter that is gone in TTIR: ``tl.constexpr``, 1 and None."""
    ttir: str

    def check_tcm(self, capacity_bytes: int) -> None:
        """Refuse a PE whose TCM does not hold the tiles of one program.

        Raises:
            TcmExhaustedError: ``triton.autotune`` takes it as "not this config".
        """
        if self.tcm.total_bytes > capacity_bytes:
            raise TcmExhaustedError(
                self.tcm.total_bytes,
                capacity_bytes,
                self.name,
                self.num_stages,
                describe_largest(self.tcm),
            )


@functools.cache
def build_binary(
    ttir: str,
    name: str,
    num_warps: int,
    num_stages: int,
    constants: tuple[tuple[str, str], ...] = (),
) -> KernelBinary:
    """Return the binary of a TTIR text, the same object for the same arguments."""
    module = read_module(ttir)
    signature = tuple(
        f"{'*' if param.is_pointer else ''}{param.dtype.triton if param.dtype else param.type}"
        for param in module.kernel.params
    )
    tcm = tcm_use(module, num_stages)
    return KernelBinary(name, module, num_warps, num_stages, signature, tcm, constants, ttir)


@functools.cache
def read_module(ttir: str) -> Module:
    """Return the parsed text, the same object for the same text: traces are memoised by it."""
    return parse_module(ttir)


class TcmExhaustedError(OutOfMemoryError, OutOfResources):  # type: ignore[misc]  # no types there
    """The tiles of one program do not fit in a PE's TCM; names the largest, with their lines."""

    def __init__(
        self,
        required: int,
        limit: int,
        kernel: str,
        num_stages: int,
        largest: tuple[str, ...],
    ) -> None:
        Exception.__init__(self, required, limit, kernel, num_stages, largest)
        self.required = required
        self.limit = limit
        self.name = "TCM"
        self.kernel = kernel
        self.num_stages = num_stages
        self.largest = largest

    def __str__(self) -> str:
        lines = [
            f"TCM is exhausted: kernel {self.kernel} needs {self.required:,} bytes with "
            f"num_stages={self.num_stages}, {self.limit:,} of {self.limit:,} are free; use smaller "
            "blocks or fewer stages; the largest tiles:"
        ]
        return "\n".join([*lines, *(f"  {tile}" for tile in self.largest)])

    def __reduce__(self) -> tuple[type[TcmExhaustedError], tuple[object, ...]]:
        return type(self), self.args


def describe_largest(tcm: TcmUse) -> tuple[str, ...]:
    """Return a line for each of the tiles that take most of the TCM, five at most."""
    largest = sorted(tcm.tiles, key=lambda tile: -tile.total_bytes)[:5]
    return tuple(_describe(tile) for tile in largest)


def _describe(tile: TcmTile) -> str:
    times = f" ({tile.copies} x {tile.size_bytes:,})" if tile.copies > 1 else ""
    return f"{tile.size_bytes * tile.copies:>12,} bytes{times}  {tile.what} at {tile.line}"
