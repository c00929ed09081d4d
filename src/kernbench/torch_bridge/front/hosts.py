"""The names of simulated hosts, where a machine has several nodes (ADR-0062)."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Callable
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE

_NAME = re.compile(r"node([0-9]+)")
_NODES_OF_LAST_BYTE = 254


def name_of(node: int) -> str:
    """Return what a node calls itself.

    >>> name_of(3)
    'node3'
    """
    return f"node{node}"


def address_of(node: int) -> str:
    """Return the address of a node in the cluster's own network.

    >>> address_of(0), address_of(254)
    ('10.0.0.1', '10.0.1.1')
    """
    high, low = divmod(node, _NODES_OF_LAST_BYTE)
    return f"10.{high >> 8}.{high & 255}.{low + 1}"


def install(patches: Patches, num_nodes: int) -> None:
    """Let each simulated process be on its own host, by the names of Python's modules."""

    def own_name(original: Callable[..., str]) -> Callable[..., str]:
        def called(*args: Any) -> str:
            process = HERE.process
            return original(*args) if process is None or any(args) else name_of(process.node)

        return called

    def uname(original: Callable[[], Any]) -> Callable[[], Any]:
        def called() -> Any:
            process, result = HERE.process, original()
            if process is None:
                return result
            values = list(result)
            values[1] = name_of(process.node)
            return type(result)(values)

        return called

    def by_name(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(host: Any, *rest: Any, **options: Any) -> Any:
            answer = _NAME.fullmatch(host) if isinstance(host, str) else None
            if HERE.process is not None and answer is not None and int(answer[1]) < num_nodes:
                host = address_of(int(answer[1]))
            return original(host, *rest, **options)

        return called

    patches.set(socket, "gethostname", own_name(socket.gethostname))
    patches.set(socket, "getfqdn", own_name(socket.getfqdn))
    patches.set(platform, "node", own_name(platform.node))
    patches.set(os, "uname", uname(os.uname))
    for name in ("gethostbyname", "getaddrinfo"):
        patches.set(socket, name, by_name(getattr(socket, name)))
