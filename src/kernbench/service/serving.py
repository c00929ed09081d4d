"""What a service runs on: its folder and its pool of processes, for as long as it serves."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernbench.errors import UsageError
from kernbench.judging import JudgePool
from kernbench.service.http import build_app
from kernbench.service.requests import Workspace
from kernbench.service.tools import Tools


@contextlib.contextmanager
def serving(
    folder: Path | None, *, workers: int, timeout_s: float, waiting: int = 64, **judging: Any
) -> Iterator[Tools]:
    """Yield the tools of a service; without a folder, what it keeps is gone at the end."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernbench-")))
        judges = JudgePool(workers, most_waiting=waiting, **judging)
        stack.callback(judges.close)
        yield Tools(Workspace(folder, timeout_s=timeout_s), judges)


def serve_http(tools: Tools, host: str, port: int, *, waiting: int) -> None:
    """Serve until Ctrl-C; the address stands on standard output once connections are taken.

    Raises:
        UsageError: The package mcp is not installed, or the port is in use.
    """
    app = build_app(tools, waiting=waiting)
    import uvicorn

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise UsageError(f"cannot serve at {host}:{port}: {error.strerror or error}") from None
        listening.listen()
        print(f"http://{host}:{listening.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[listening])
