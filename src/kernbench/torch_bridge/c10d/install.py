"""Replacing the native parts of ``torch.distributed`` by simulated groups, worlds and stores."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, NoReturn

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.distributed.rpc as rpc
from torch._C import _distributed_c10d as native
from torch._C._distributed_c10d import (
    _register_process_group,
    _set_thread_isolation_mode,
    _unregister_all_process_groups,
)

from kernbench.errors import UsageError, nearest
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.c10d import (
    peer_reductions,  # noqa: F401  Its operators are defined.
    symmetric_memory,
    symmetric_operations,
)
from kernbench.torch_bridge.c10d.process_group import GlooGroup, NcclGroup, Options
from kernbench.torch_bridge.c10d.store import FileStore, HashStore, TCPStore, rendezvous
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import HERE, Process, current


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


_OF_TORCHCOMMS = ("dummy", "mccl", "ncclx", "rccl", "rcclx")
"""Names of back ends that the package torchcomms brings, besides ``gloo`` and ``nccl``."""
_BUILT_IN = ("fake", "gloo", "nccl", "undefined")
"""Back ends that are there; by the last one PyTorch asks for those of each device."""
_NCCL_GROUPS = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
"""Classes from which PyTorch makes groups of the backend ``nccl``; they differ between releases."""


def know_groups(process: Process) -> None:
    """Let C++ find a process's groups from the calling thread, a new thread of that process."""
    if process.world is not None:
        for group, name in process.world.pg_names.items():
            _register_process_group(name, group)


def split_group(
    parent_pg: Any = None,
    split_ranks: Any = None,
    timeout: Any = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: Any = None,
) -> Any:
    """``torch.distributed.split_group``: the group of the caller's ranks, None if it is in none.

    Raises:
        ValueError: No ranks are given, or one of them twice.
    """
    if not split_ranks or not all(split_ranks):
        raise ValueError("split_ranks cannot be None or empty")
    parent = dist.group.WORLD if parent_pg is None else parent_pg
    global_ranks = dist.get_process_group_ranks(parent)
    everyone = [rank for ranks in split_ranks for rank in ranks]
    if len(everyone) != len(set(everyone)):
        raise ValueError("the split group cannot have duplicate ranks")
    mine = dist.get_rank(parent)
    for ranks in split_ranks:
        if mine in ranks:
            members = [global_ranks[rank] for rank in sorted(ranks)]
            return dist.new_group(
                members, backend=backend, use_local_synchronization=True, group_desc=group_desc
            )
    return None


def _as_nccl(asked: Any, value: Any) -> NcclGroup:
    """Return the group of a back end of torchcomms: one of NCCL's."""
    options = value if isinstance(value, Options) else Options()
    options._timeout = asked.timeout
    return NcclGroup(asked.store, asked.group_rank, asked.group_size, options)


def _knowing(begin: Callable[..., None]) -> Callable[..., None]:
    """Return ``BackendConfig``'s initializer, which refuses back ends that there are none of."""

    @wraps(begin)
    def init(self: Any, backend: Any) -> None:
        refuse(backend)
        begin(self, backend)

    refuse = unseen(_refuse_unknown)
    return init


def _refuse_unknown(backend: Any) -> None:
    """Refuse names, alone or by device as in ``cuda:nccl,cpu:gloo``, of back ends that are none."""
    known = {*_BUILT_IN, *(plugin.lower() for plugin in c10d.Backend._plugins)}
    for name in (word.split(":")[-1].strip() for word in str(backend or "").lower().split(",")):
        if name and name not in known:
            raise UsageError(
                f"torch.distributed has no back end {name!r} for simulated devices: "
                f"{nearest(name, sorted(known))}; others are registered with "
                "torch.distributed.Backend.register_backend"
            )
        if name in _OF_TORCHCOMMS and HERE.process is not None:
            HERE.process.session.as_nccl.add(name)


def _refuse_rpc(*args: Any, **kwargs: Any) -> NoReturn:
    raise UnsupportedTorchError(
        "torch.distributed.rpc.init_rpc: TensorPipe would open connections outside of the "
        "simulation; send objects with torch.distributed's own collectives"
    )


def _end_isolation() -> None:
    """Forget the groups that a program left in this thread, and let C++ have one registry again.

    A main program runs in the thread of whoever runs it, who may run another one.
    """
    _unregister_all_process_groups()
    _set_thread_isolation_mode(False)


def install(patches: Patches) -> None:
    """Let every simulated process have a world of its own, of simulated groups."""
    groups = {"ProcessGroupGloo": GlooGroup} | dict.fromkeys(_NCCL_GROUPS, NcclGroup)
    patches.set_all(
        c10d,
        _world=CurrentWorld(),
        **groups,
        _GLOO_AVAILABLE=True,
        _NCCL_AVAILABLE=True,
        rendezvous=rendezvous,
        default_pg_nccl_timeout=timedelta(minutes=10),
        # It would record the calls of a group in C++, to report which rank hangs.
        _maybe_attach_flight_recorder=lambda *args, **kwargs: None,
    )
    for owner in (dist, c10d):
        patches.set(owner, "split_group", split_group)
    kind, plugin = c10d.Backend, c10d.Backend._BackendPlugin
    plugins = {torchcomm.upper(): plugin(_as_nccl, True) for torchcomm in _OF_TORCHCOMMS}
    of_type = dict.fromkeys(_OF_TORCHCOMMS, dist.ProcessGroup.BackendType.CUSTOM)
    patches.set_all(
        kind,
        _plugins=plugins | kind._plugins,
        backend_list=[*kind.backend_list, *_OF_TORCHCOMMS],
        backend_capability={torchcomm: ["cuda"] for torchcomm in _OF_TORCHCOMMS}
        | kind.backend_capability,
        backend_type_map=of_type | kind.backend_type_map,
    )
    patches.set(c10d.BackendConfig, "__init__", _knowing(c10d.BackendConfig.__init__))
    patches.set(rpc, "init_rpc", _refuse_rpc)
    patches.set_all(
        dist,
        **groups,
        rendezvous=rendezvous,
        TCPStore=TCPStore,
        FileStore=FileStore,
        HashStore=HashStore,
    )
    symmetric_memory.install(patches)
    symmetric_operations.install(patches)
    patches.set(sys.modules["torch.distributed.rendezvous"], "rendezvous", rendezvous)
    # C++ finds groups by name; with this each thread has names of its own.
    _set_thread_isolation_mode(True)
    patches.on_close(_end_isolation)
    # PyTorch's tests end that where their own threads have ended.
    patches.set(native, "_set_thread_isolation_mode", lambda enable: None)
