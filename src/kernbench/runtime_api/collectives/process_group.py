"""Groups of ranks that call collectives together."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.runtime_api.collectives.collective import Collective


DEFAULT_TIMEOUT_PS = 600 * 10**12
"""Ten minutes, as NCCL's groups have."""


class ProcessGroup:
    """The ranks of a group, in group order, and the collectives not all of them have called yet."""

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        timeout_ps: int = DEFAULT_TIMEOUT_PS,
        made_by: str = "another rank",
    ) -> None:
        self.name = name
        self.made_by = made_by
        """Who was the first to make it, and where: for an error about others that differ."""
        self.ranks = ranks
        self.timeout_ps = timeout_ps
        """How long the first rank at a collective waits for the last, in simulated time."""
        self.positions = {rank: position for position, rank in enumerate(ranks)}
        self.pending: dict[int, Collective] = {}
        """By the number of the call, counted from 1."""

    def __repr__(self) -> str:
        return f"ProcessGroup({self.name}, ranks {list(self.ranks)})"

    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)

    def position(self, rank: int) -> int:
        """Return where in the group a rank is.

        Raises:
            UsageError: It is not in it.
        """
        found = self.positions.get(rank) if isinstance(rank, Integral) else None
        if found is None:
            raise UsageError(
                f"rank {rank!r} is not in group {self.name}, which has ranks {list(self.ranks)}"
            )
        return found
