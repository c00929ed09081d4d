"""What addresses of ZeroMQ stand for: endpoints of sockets of the run, by ``tcp`` or ``ipc``."""

from __future__ import annotations

import errno
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.process import Process
from kernbench.torch_bridge.python.sockets.endpoints import Endpoint, RealSocket, SocketNetwork
from kernbench.torch_bridge.python.sockets.sockets import file_key
from kernbench.torch_bridge.python.sockets.zmq_options import ZmqFailureError


def listening(network: SocketNetwork, process: Process, scheme: str, rest: str) -> Endpoint:
    """Return a bound socket at an address of ``ipc`` or ``tcp``."""
    if scheme == "ipc":
        end = Endpoint(network, socket.AF_UNIX, socket.SOCK_STREAM, 0)
        name = _path_of(rest)
        if not name.startswith("\0"):
            with suppress(OSError):
                Path(name).unlink()
            with RealSocket(socket.AF_UNIX) as real:
                try:
                    real.bind(name)
                except OSError as error:
                    raise ZmqFailureError(error.errno or errno.ENAMETOOLONG) from None
        end.name = name
        network.bind_key(end, file_key(end, name))
    elif scheme == "tcp":
        host, _, port = rest.rpartition(":")
        end, host = _of_host(network, host, port)
        if network.node_of(host, process) != process.node:
            raise ZmqFailureError(errno.EADDRNOTAVAIL)
        try:
            number = network.bind_port(end, host, 0 if port == "*" else int(port))
        except OSError as error:
            raise ZmqFailureError(error.errno or errno.EINVAL) from None
        end.name = (host, number)
    else:
        raise _unknown(scheme)
    end.pending = deque()
    return end


def connecting(network: SocketNetwork, process: Process, scheme: str, rest: str) -> Endpoint:
    """Return a socket that knows to which address it is to be connected."""
    if scheme == "ipc":
        end = Endpoint(network, socket.AF_UNIX, socket.SOCK_STREAM, 0)
        end.peer_name = _path_of(rest)
        return end
    if scheme != "tcp":
        raise _unknown(scheme)
    host, _, port = rest.rpartition(":")
    if host == "*" or not port.isdigit():
        raise ZmqFailureError(errno.EINVAL)
    end, host = _of_host(network, host, port)
    end.peer_name = (host, int(port))
    if network.node_of(host, process) is None:
        raise UnsupportedTorchError(
            f"a socket of ZeroMQ connects to tcp://{rest}, which is no address of this run: its "
            "messages reach processes of the run alone; connect to 127.0.0.1, or to a node's name"
        )
    return end


def _of_host(network: SocketNetwork, host: str, port: str) -> tuple[Endpoint, str]:
    """Return a new socket of the family of a host, and the host's address."""
    if not (port == "*" or port.isdigit()):
        raise ZmqFailureError(errno.EINVAL)
    host = "0.0.0.0" if host == "*" else host.strip("[]")
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        raise ZmqFailureError(errno.ENODEV) from None
    family, *_, address = next((f for f in addresses if f[0] == socket.AF_INET), addresses[0])
    return Endpoint(network, family, socket.SOCK_STREAM, 0), str(address[0])


def _path_of(rest: str) -> str:
    return "\0" + rest[1:] if rest.startswith("@") else rest


def _unknown(scheme: str) -> Exception:
    if scheme in ("udp", "pgm", "epgm", "norm", "vmci", "tipc", "ws", "wss"):
        return UnsupportedTorchError(
            f"ZeroMQ's {scheme}:// is not simulated; use tcp://, ipc:// or inproc://"
        )
    return ZmqFailureError(errno.EPROTONOSUPPORT)
