"""A simulated process: what each rank has of its own although all share one real process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kernbench.torch_bridge.host import Host

if TYPE_CHECKING:
    from kernbench.runtime_api import RankState
    from kernbench.torch_bridge.session import Session


class Process:
    """One rank's process, or the one that runs the program before it spawns ranks."""

    def __init__(self, session: Session, rank: int, environ: dict[Any, Any]) -> None:
        self.session = session
        self.rank = rank
        self.environ = environ
        """Its environment variables, encoded as ``os.environ`` keeps them."""
        self.host = Host(session.run)
        self.saved: dict[str, Any] = {}
        """Its values of state that the real process has once, while another rank runs."""
        self.world: Any = None
        """Its ``torch.distributed`` world, once it was asked for."""
        self.device_rng = (0, 0)
        """Seed and offset of the device's random numbers."""
        self.kept: set[Any] = set()
        """Objects that only C++ holds, which would let their Python half die."""

    def __repr__(self) -> str:
        return f"Process(rank {self.rank})"

    @property
    def state(self) -> RankState:
        """What the runtime keeps about the rank."""
        return self.session.run.rank_state


class _Here(threading.local):
    process: Process | None = None


HERE = _Here()
"""Which process the calling thread belongs to."""


def current() -> Process:
    """Return the process that the calling code belongs to."""
    found = HERE.process
    if found is None:
        raise RuntimeError("this thread belongs to no simulated process")
    return found
