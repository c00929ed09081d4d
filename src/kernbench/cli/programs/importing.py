"""Importing what a command needs, which stays until it ends."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def staying() -> Iterator[None]:
    """Let the garbage collector rest in a block that imports, and freeze what there is at its end.

    It would look at hundreds of thousands of objects again and again, none of them garbage: a tenth
    of the time that a short run takes.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()


def import_to_stay(module: str) -> None:
    """Import a module in such a block, unless it has been imported."""
    if module not in sys.modules:
        with staying():
            import_module(module)
