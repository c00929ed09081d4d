"""Copies between host and device, which C++ takes for copies inside the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class _Move(threading.local):
    under_way = False
    target: torch.device | None = None


MOVE = _Move()
"""Where the results of the thread's operations go, while a move is under way."""
UNDER_WAY: set[object] = set()
"""Moves of any thread, and captures of graphs; empty nearly always, which is found out faster than
what a thread has."""


@contextmanager
def moving(target: torch.device | None) -> Iterator[None]:
    """Let results be on ``target``, None for the host, wherever the operands are."""
    before: Any = (MOVE.under_way, MOVE.target)
    move = object()
    UNDER_WAY.add(move)
    MOVE.under_way, MOVE.target = True, target
    try:
        yield
    finally:
        MOVE.under_way, MOVE.target = before
        UNDER_WAY.discard(move)
