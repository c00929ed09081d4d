"""Printing a tensor of a device: its operations run there, and the host waits for what it shows.

PyTorch prints below all dispatch modes, so that no program's mode sees it; here that would hide it
from the observer, too. Source: ``_str`` of PyTorch's ``torch/_tensor_str.py``.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch._tensor_str as tensor_str
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from kernbench.torch_bridge.base.modes import Mode
from kernbench.torch_bridge.base.patches import Patches


def install(patches: Patches) -> None:
    """Keep the modes of the bridge where PyTorch prints."""
    patches.set(tensor_str, "_str", _shown)


def _shown(self: Tensor, *, tensor_contents: Any = None) -> Any:
    """Return what ``Tensor.__repr__`` prints."""
    with torch.no_grad(), _disable_current_modes() as modes, ExitStack() as kept:
        for mode in modes:
            if isinstance(mode, Mode):
                kept.enter_context(mode)
        guard = torch._C._DisableFuncTorch()  # noqa: F841 - it lives until the end
        return tensor_str._str_intern(self, tensor_contents=tensor_contents)
