"""Sockets of simulated processes, in simulated time (ADR-0259)."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.python.sockets import polling, sockets, zmq_backend
from kernbench.torch_bridge.python.sockets.channels import Wake
from kernbench.torch_bridge.python.sockets.endpoints import SocketNetwork
from kernbench.torch_bridge.python.sockets.handles import SocketHandle, close_all
from kernbench.torch_bridge.python.sockets.polling import WaitingSelector
from kernbench.torch_bridge.python.sockets.sockets import ConnectingSocket, SimulatedSocket

IN_C = (
    SocketHandle, ConnectingSocket, SimulatedSocket, WaitingSelector, polling.WaitingPoll,
    polling.WaitingEpoll, select, zmq_backend.ZmqSocket, zmq_backend.ZmqContext,
    zmq_backend.ZmqFrame,
)  # fmt: skip
"""Classes and modules in place of C++, whose calls are none of Python."""


def install(patches: Patches, session: Any, address_of: Callable[[int], str]) -> None:
    """Let sockets between processes of a run pass simulated time; nodes have addresses."""
    session.network = SocketNetwork(session, address_of)
    polling.install(patches)
    sockets.install(patches)
    zmq_backend.install(patches)
