"""Work on whole logs, in which Python's search for garbage would find nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the garbage collector rest, where hundreds of thousands of objects are made to stay.

    It would look at all of them again and again: making the report of 21,000 launches took four
    times as long.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
