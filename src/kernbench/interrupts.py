"""Where an interrupt (Ctrl-C) would be lost, and how soon to try again."""

from __future__ import annotations

from types import FrameType

RETRY_S = 0.001
_SWALLOWING = frozenset({"__del__", "remove", "_remove"})
"""Where Python only prints exceptions: finalizers, and the callbacks of weak references."""


def is_swallowed(frame: FrameType | None) -> bool:
    """Return whether an interrupt that is raised in a frame would get no further than printed."""
    while frame is not None:
        if frame.f_code.co_name in _SWALLOWING:
            return True
        frame = frame.f_back
    return False
