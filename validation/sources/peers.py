"""Peer-to-peer all-reduces of serving stacks: kernels that store into their peers' memory.

A stack has its own kernel up to some size, in one shot or in two, and passes larger messages to the
vendor's library. A source says which stack it measured in its column ``impl``, and whether a graph
launched it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import Field

from validation.sources.tables import Entry, table

_T = TypeVar("_T")
_ANY = 0
"""Number of ranks: for all others."""


class _OfStack(Entry):
    """What is of a stack's kernel on a machine, of so many ranks or of all others."""

    stack: str
    ranks: int = Field(default=_ANY, ge=0)
    also: tuple[str, ...] = ()
    """Machines of the same kind without rows of their own."""

    def key(self) -> tuple[str, str, int]:
        return self.stack, self.machine, self.ranks

    def places(self) -> list[tuple[str, str, int]]:
        """Return the stack, each machine and the number of ranks that it is for."""
        return [(self.stack, machine, self.ranks) for machine in (self.machine, *self.also)]


class Kernel(_OfStack):
    """Keys of the machine that differ for a stack's kernel."""

    changes: dict[str, float]


class Limit(_OfStack):
    """The size from which the vendor's library does it."""

    mib: float = Field(gt=0)


class Host(_OfStack):
    """The least time of a launch without a graph."""

    host_us: float = Field(gt=0)


class OneShot(Entry):
    """Up to how many ranks messages below a size take one shot, and from it on two."""

    stacks: tuple[str, ...]
    most_ranks: int = Field(ge=2)
    kib: float = Field(gt=0)

    def key(self) -> int:
        return self.most_ranks


_FILE, _MIB = "peers.yaml", 2**20
_LIMIT_BYTES = 8 * _MIB
_MOST_OVER_PCIE = 2
"""More ranks than that without NVLink leave all to the library.
Source: vLLM, custom_all_reduce.py, which SGLang's is."""
PEERS = {
    key: kernel.changes for kernel in table(_FILE, "kernels", Kernel) for key in kernel.places()
}
"""What a stack has on a machine with so many ranks: keys of the machine under ``collectives.peer``.
"""
_LIMITS = {
    key: limit.mib * _MIB for limit in table(_FILE, "limits", Limit) for key in limit.places()
}
"""The same: the size from which the library does it, where another than ``_LIMIT_BYTES``."""
_ONE_SHOT = table(_FILE, "one_shot", OneShot)
_HOSTS = {key: host.host_us for host in table(_FILE, "hosts", Host) for key in host.places()}
"""The same: the least time of a launch without a graph."""


@dataclass(frozen=True, slots=True)
class PeerKernel:
    """A stack's all-reduce on a machine."""

    impl: str
    """What the source says of it: the stack first."""
    machine: str
    num_ranks: int
    over_pcie: bool = False
    """Whether PCI Express joins the ranks."""

    @property
    def stack(self) -> str:
        return self.impl.partition(" ")[0]

    def algorithms(self, num_bytes: int) -> tuple[str, ...]:
        """Return the algorithms of which it takes the fastest."""
        if num_bytes >= (_of_ranks(_LIMITS, self) or _LIMIT_BYTES):
            return ("auto",)
        shots = [one_shot for one_shot in _ONE_SHOT if self.stack in one_shot.stacks]
        if not shots:
            return ("one_shot", "two_shot")
        if self.over_pcie and self.num_ranks > _MOST_OVER_PCIE:
            return ("auto",)
        limits = [shot.kib * 1024 for shot in shots if self.num_ranks <= shot.most_ranks]
        return ("one_shot",) if limits and num_bytes < limits[0] else ("two_shot",)

    def host_us(self) -> float:
        """Return how long the stack's host takes to launch it, 0 where a graph does."""
        if not self.impl.endswith("_eager"):
            return 0.0
        return _of_ranks(_HOSTS, self) or 0.0

    def changes(self) -> dict[str, float]:
        """Return the machine's keys that differ for this kernel, with their values."""
        ranks = _of_ranks(PEERS, self) or {}
        return {f"collectives.peer.{name}": value for name, value in ranks.items()}


def _of_ranks(known: Mapping[tuple[str, str, int], _T], kernel: PeerKernel) -> _T | None:
    places = ((kernel.machine, kernel.num_ranks), (kernel.machine, _ANY), ("", _ANY))
    return next((known[key] for at in places if (key := (kernel.stack, *at)) in known), None)
