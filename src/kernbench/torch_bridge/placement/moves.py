"""Copies between host and device, which C++ sees as copies within the CPU."""

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
"""Where the results of the thread's operations go, during a move."""
UNDER_WAY: set[object] = set()
"""Moves of all threads, and captures of graphs. It is empty nearly always, and checking that is
faster than reading a thread's own state."""


@contextmanager
def moving(target: torch.device | None) -> Iterator[None]:
    """Place results on ``target`` (None: the host), wherever the operands are."""
    before: Any = (MOVE.under_way, MOVE.target)
    move = object()
    UNDER_WAY.add(move)
    MOVE.under_way, MOVE.target = True, target
    try:
        yield
    finally:
        MOVE.under_way, MOVE.target = before
        UNDER_WAY.discard(move)
