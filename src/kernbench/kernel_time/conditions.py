"""What a kernel's schedule depends on besides the kernel and the machine."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kernbench.errors import UsageError
from kernbench.policy import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadBlock:
    """What one program of a kernel is to a GPU."""

    num_warps: int
    registers: int
    """Registers demanded per thread; it gets at most ``WarpSpec.thread_registers``."""
    shared_bytes: int
    architecture: int
    """90 for compute capability 9.0."""
    tile_registers: int = 0
    """Registers for a thread's part of the largest tile of a program without a loop; else 0."""
    spared: int = 0
    """How many of ``registers`` its threads do without before any is spilled."""
    multiplies: bool = False
    """Whether it has a product, which the matrix unit makes."""
    matrix_side: int = 0
    """Rows and columns of AMD's matrix instructions where the launch says so; 0: by the tile."""


@dataclass(frozen=True)
class Conditions:
    """The state of a SIP that a launch meets; hashable, so that schedules can be memoised.

    Attributes:
        placements: (parameter index, placement) of the pointer parameters that have a policy;
            a tensor without one is spread over all cubes.
        cached: (parameter index, share) of the pointer parameters of which the cache holds a
            part when the kernel starts; machines without a cache do not care.
        queued: Whether the kernel waited in the device's queue behind another one.
        tables: (parameter index, bytes) of the tensors that the kernel goes to by loaded indices.
        block: What a program takes of PEs that count warps. Without it, what TCM says.
    """

    placements: tuple[tuple[int, Placement], ...] = ()
    cached: tuple[tuple[int, Fraction], ...] = ()
    queued: bool = False
    tables: tuple[tuple[int, int], ...] = ()
    block: ThreadBlock | None = None

    def __post_init__(self) -> None:
        for param, share in self.cached:
            if not 0 <= share <= 1:
                raise UsageError(
                    f"the cached share of parameter {param} must be from 0 to 1, but got {share}"
                )
