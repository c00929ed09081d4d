"""Peer-to-peer all-reduces of serving stacks: kernels that store into their peers' memory.

A stack has its own kernel up to some size, in one shot or in two, and passes larger messages to the
vendor's library. A source says which stack it measured in its column ``impl``, and whether a graph
launched it.
"""

from __future__ import annotations

import math
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

    def key(self) -> tuple[str, str, int]:
        return self.stack, self.machine, self.ranks


class Kernel(_OfStack):
    """Keys of the machine that differ for a stack's kernel."""

    changes: dict[str, float]


class Limit(_OfStack):
    """The size from which the vendor's library does it."""

    mib: float = Field(gt=0)


class Host(_OfStack):
    """The least time of a launch without a graph."""

    host_us: float = Field(gt=0)


_FILE, _MIB = "peers.yaml", 2**20
_LIMIT_BYTES = 8 * _MIB
PEERS = {each.key(): each.changes for each in table(_FILE, "kernels", Kernel)}
"""What a stack has on a machine with so many ranks: keys of the machine under ``collectives.peer``.
"""
_LIMITS = {each.key(): each.mib * _MIB for each in table(_FILE, "limits", Limit)}
"""The same: the size from which the library does it, where another than ``_LIMIT_BYTES``."""

_ONE_SHOT = {2: math.inf, 4: 512 * 1024, 8: 256 * 1024}
"""Limits of vLLM's kernel, by the most ranks: messages from that size on take two shots.
Source: vLLM, csrc/custom_all_reduce.cuh, which SGLang's is."""
_OF_VLLM = ("vllm", "sglang")

_HOSTS = {each.key(): each.host_us for each in table(_FILE, "hosts", Host)}
"""The same: the least time of a launch without a graph."""


@dataclass(frozen=True, slots=True)
class PeerKernel:
    """A stack's all-reduce on a machine."""

    impl: str
    """What the source says of it: the stack first."""
    machine: str
    num_ranks: int

    @property
    def stack(self) -> str:
        return self.impl.partition(" ")[0]

    def algorithms(self, num_bytes: int) -> tuple[str, ...]:
        """Return the algorithms of which it takes the fastest."""
        if num_bytes >= (_of_ranks(_LIMITS, self) or _LIMIT_BYTES):
            return ("auto",)
        if self.stack not in _OF_VLLM:
            return ("one_shot", "two_shot")
        limits = [most for ranks, most in _ONE_SHOT.items() if self.num_ranks <= ranks]
        return ("one_shot",) if limits and num_bytes < limits[0] else ("two_shot",)

    def host_us(self) -> float:
        """Return how long the stack's host takes to launch it, 0 where a graph does."""
        if not self.impl.endswith("_eager"):
            return 0.0
        return _of_ranks(_HOSTS, self) or 0.0

    def changes(self) -> dict[str, float]:
        """Return the machine's keys that differ for this kernel, with their values."""
        found = _of_ranks(PEERS, self) or {}
        return {f"collectives.peer.{name}": value for name, value in found.items()}


def _of_ranks(known: Mapping[tuple[str, str, int], _T], kernel: PeerKernel) -> _T | None:
    own = known.get((kernel.stack, kernel.machine, kernel.num_ranks))
    return own if own is not None else known.get((kernel.stack, kernel.machine, _ANY))
