"""Process groups: the half of ``torch.distributed`` that makes and queries them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from numbers import Integral
from typing import Any

from kernbench.clock import user_site
from kernbench.errors import UsageError
from kernbench.runtime_api.base.rank_state import RankState
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.collectives.collective import Collective

DEFAULT_TIMEOUT_PS = 600 * 10**12
"""Ten minutes, as NCCL's groups have."""


class ProcessGroup:
    """The ranks of a group, in group order, and the collectives that some have yet to call."""

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        timeout_ps: int = DEFAULT_TIMEOUT_PS,
        made_by: str = "another rank",
    ) -> None:
        self.name = name
        self.made_by = made_by
        """Which rank made it first, and where: for an error about ranks that differ."""
        self.ranks = ranks
        self.timeout_ps = timeout_ps
        """How long the first rank at a collective waits for the last, in simulated time."""
        self.positions = {rank: position for position, rank in enumerate(ranks)}
        self.pending: dict[int, Collective] = {}
        """The collectives that have begun, by the number of the call, counted from 1."""

    def __repr__(self) -> str:
        return f"ProcessGroup({self.name}, ranks {list(self.ranks)})"

    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)

    def position(self, rank: int) -> int:
        """Return the position of a rank in the group.

        Raises:
            UsageError: It is not in the group.
        """
        result = self.positions.get(rank) if isinstance(rank, Integral) else None
        if result is None:
            raise UsageError(
                f"rank {rank!r} is not in group {self.name}, which has ranks {list(self.ranks)}"
            )
        return result


class Groups:
    """The groups of a run; ranks of one ``spawn`` share them, those of others never do."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._groups: dict[tuple[int, int], ProcessGroup] = {}
        self._worlds: dict[RankState, ProcessGroup] = {}
        """The default group of each rank that has called ``init_process_group``."""

    def is_available(self) -> bool:
        """Return True, as torch does when built with torch.distributed."""
        return True

    def init_process_group(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *,
        blocking_wait: bool = True,
        **ignored: Any,
    ) -> None:
        """Join the default group, which has all ranks of the ``spawn``; before any collective.

        What says how processes find each other is accepted and not needed. ``rank`` and
        ``world_size`` may be left out; where given they must be the true ones.

        To wait for a collective (``async_op=False`` does) blocks the rank until it has ended. With
        ``blocking_wait=False`` the host continues at once and what it launches later on the current
        stream waits, as with torch's NCCL backend; ``synchronize()`` and reading a tensor block.

        ``timeout``, a ``timedelta`` (ten minutes where left out), is how long the first rank at a
        collective waits for the last, in simulated time.

        Raises:
            UsageError: Joined already, or a number is not the true one.
        """
        state = self._run.rank_state
        if state in self._worlds:
            raise UsageError(f"rank {state.rank} has called init_process_group before")
        if rank not in (-1, state.rank):
            raise UsageError(f"init_process_group: rank={rank}, but this is rank {state.rank}")
        if world_size not in (-1, state.world_size):
            raise UsageError(
                f"init_process_group: world_size={world_size}, but spawn started "
                f"{state.world_size} ranks"
            )
        key = (state.spawn_id, 0)
        timeout_ps = _timeout_ps("init_process_group", timeout, DEFAULT_TIMEOUT_PS)
        if key not in self._groups:
            self._groups[key] = ProcessGroup("world", tuple(range(state.world_size)), timeout_ps)
        self._worlds[state] = self._groups[key]
        state.blocking_wait = blocking_wait

    def is_initialized(self) -> bool:
        """Return whether the calling rank has joined the default group."""
        return self._run.rank_state in self._worlds

    def destroy_process_group(self, group: ProcessGroup | None = None) -> None:
        """Leave the default group, or forget another one."""
        if group is None:
            self.resolve(None)
            del self._worlds[self._run.rank_state]

    def new_group(
        self, ranks: Sequence[int] | None = None, timeout: Any = None, **ignored: Any
    ) -> ProcessGroup:
        """Return a group of some ranks of the world, by default all; every rank must call this.

        Raises:
            UsageError: A rank is not in the world or named twice, or the ranks disagree.
        """
        world = self.resolve(None)
        state = self._run.rank_state
        if ranks is not None and not isinstance(ranks, Iterable):
            raise UsageError(f"new_group takes a list of ranks, but got {ranks!r}")
        members = world.ranks if ranks is None else tuple(ranks)
        if not members:
            raise UsageError("new_group needs at least one rank")
        for rank in members:
            if not isinstance(rank, Integral) or rank not in world.positions:
                raise UsageError(
                    f"new_group: rank {rank!r} was asked for, but the world has {world.size()} "
                    "ranks"
                )
        if len(set(members)) != len(members):
            raise UsageError(f"new_group: ranks {list(members)} name a rank twice")
        state.new_group_calls += 1
        key = (state.spawn_id, state.new_group_calls)
        group = self._groups.get(key)
        if group is None:
            name = f"{state.new_group_calls} of ranks {_short(members)}"
            timeout_ps = _timeout_ps("new_group", timeout, world.timeout_ps)
            made_by = f"rank {state.rank}, at {user_site()},"
            group = self._groups[key] = ProcessGroup(name, members, timeout_ps, made_by)
        elif group.ranks != members:
            raise UsageError(
                f"new_group: rank {state.rank} asks for ranks {list(members)} where "
                f"{group.made_by} asked for {list(group.ranks)}; every rank must make the same "
                "new_group calls"
            )
        return group

    def get_rank(self, group: ProcessGroup | None = None) -> int:
        """Return the calling rank's number in a group, -1 if it is not in it."""
        return self.resolve(group).positions.get(self._run.rank_state.rank, -1)

    def get_world_size(self, group: ProcessGroup | None = None) -> int:
        """Return the number of ranks of a group, by default the world's."""
        return self.resolve(group).size()

    def get_process_group_ranks(self, group: ProcessGroup | None = None) -> list[int]:
        """Return the ranks of a group, counted in the world."""
        return list(self.resolve(group).ranks)

    def get_backend(self, group: ProcessGroup | None = None) -> str:
        """Return the name of the backend."""
        self.resolve(group)
        return "ahbm"

    def resolve(self, group: ProcessGroup | None) -> ProcessGroup:
        """Return a group, or the default one for None.

        Raises:
            UsageError: The calling rank has not joined it.
        """
        state = self._run.rank_state
        world = self._worlds.get(state)
        if world is None:
            raise UsageError(
                f"rank {state.rank} is in no process group; "
                "call torch.distributed.init_process_group() first"
            )
        if group is None:
            return world
        if not isinstance(group, ProcessGroup):
            raise UsageError(f"group must be a ProcessGroup of new_group(), but got {group!r}")
        return group


def _timeout_ps(what: str, timeout: Any, default_ps: int) -> int:
    """Return a group's timeout, given as a ``timedelta``, in picoseconds.

    Raises:
        UsageError: It is no ``timedelta``, or no time at all.
    """
    if timeout is None:
        return default_ps
    if not isinstance(timeout, timedelta) or timeout <= timedelta():
        raise UsageError(f"{what}: timeout must be a positive timedelta, but got {timeout!r}")
    return int(timeout / timedelta(microseconds=1)) * 10**6


def _short(members: tuple[int, ...]) -> str:
    if len(members) <= 8:
        return ",".join(map(str, members))
    return f"{members[0]},{members[1]},..,{members[-1]}"
