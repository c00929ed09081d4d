"""Importing what a run needs, which stays until the command ends."""

from __future__ import annotations

import gc
import sys
from importlib import import_module


def import_to_stay(module: str) -> None:
    """Import a module, and freeze what there is then for the garbage collector.

    It would look at hundreds of thousands of objects again and again, none of them garbage: a tenth
    of the time that a short run takes.
    """
    if module in sys.modules:
        return
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.enable()
    gc.freeze()
