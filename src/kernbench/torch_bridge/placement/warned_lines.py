"""Warnings of PyTorch's C++ name the line that called it, and not one of kernbench in between."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.placement.call_stacks import frames_of, is_ours

_show: Any = warnings._showwarnmsg  # type: ignore[attr-defined]


def _show_at_call(message: Any) -> None:
    """Show a warning: C++ says the innermost line of Python as that from which it was called."""
    if is_ours(message.filename):
        for message.filename, message.lineno, _ in frames_of(sys._getframe(1)):
            if message.filename != warnings.__file__:
                break
    _show(message)


def install(patches: Patches) -> None:
    """Let warnings name lines of the program, or of a library that it calls."""
    patches.set(warnings, "_showwarnmsg", _show_at_call)
