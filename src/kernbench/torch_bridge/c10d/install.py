"""Putting the simulated world in the place of ``torch.distributed``'s native parts."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import _register_process_group, _set_thread_isolation_mode

from kernbench.torch_bridge.c10d.process_group import GlooGroup, NcclGroup
from kernbench.torch_bridge.c10d.store import file_store, rendezvous, tcp_store
from kernbench.torch_bridge.c10d.world import CurrentWorld
from kernbench.torch_bridge.patches import Patches
from kernbench.torch_bridge.process import Process


def know_groups(process: Process) -> None:
    """Let C++ find a process's groups from the calling thread, which is a new one of it."""
    if process.world is not None:
        for group, name in process.world.pg_names.items():
            _register_process_group(name, group)


def install(patches: Patches) -> None:
    """Let every simulated process have a world of its own, of simulated groups."""
    patches.set_all(
        c10d,
        {
            "_world": CurrentWorld(),
            "ProcessGroupGloo": GlooGroup,
            "ProcessGroupNCCL": NcclGroup,
            "_GLOO_AVAILABLE": True,
            "_NCCL_AVAILABLE": True,
            "rendezvous": rendezvous,
            "default_pg_nccl_timeout": timedelta(minutes=10),
        },
    )
    patches.set_all(
        dist,
        {
            "ProcessGroupGloo": GlooGroup,
            "ProcessGroupNCCL": NcclGroup,
            "rendezvous": rendezvous,
            "TCPStore": tcp_store,
            "FileStore": file_store,
        },
    )
    patches.set(sys.modules["torch.distributed.rendezvous"], "rendezvous", rendezvous)
    # C++ finds groups by name; each thread then has names of its own.
    _set_thread_isolation_mode(True)
    patches.on_close(_set_thread_isolation_mode, False)
