"""The process groups of each simulated process, in place of the real process's."""

from __future__ import annotations

from typing import Any

import torch.distributed.distributed_c10d as c10d

from kernbench.torch_bridge.processes.process import HERE, current


class _World:
    """The state that ``distributed_c10d._World`` keeps, for one process."""

    def __init__(self) -> None:
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, str] = {}
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, Any] = {}
        self.pg_flight_recorder_hooks: dict[Any, Any] = {}
        self.comms: list[Any] = []

    @property
    def pg_config_info(self) -> Any:
        return c10d._World.pg_config_info.fget(self)


def _world() -> _World:
    process = current()
    world: _World | None = process.world
    if world is None:
        world = process.world = _World()
    return world


class CurrentWorld:
    """Replaces ``distributed_c10d._world``: shows the attributes of the calling process's world."""

    def __getattr__(self, name: str) -> Any:
        # Read several times in each call of a collective.
        process = HERE.process
        return getattr((process and process.world) or _world(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_world(), name, value)
