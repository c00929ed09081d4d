"""Which kind of attention a program asks for: each of CUDA's fast ones is flash attention here.

PyTorch's choice for the CPU, which is asked here, knows of flash attention and of plain operations
only: a program that allows memory-efficient or cuDNN's attention alone would find none.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches

_C: Any = torch._C
_FLASH = "flash"
_KINDS = (_FLASH, "mem_efficient", "cudnn")


def install(patches: Patches) -> None:
    """Let C++ allow flash attention while the program allows any of them."""
    allowed = {kind: getattr(_C, f"_get_{kind}_sdp_enabled")() for kind in _KINDS}
    set_flash = _C._set_sdp_use_flash
    patches.on_close(set_flash, allowed[_FLASH])
    for kind in _KINDS:
        set_kind = getattr(_C, f"_set_sdp_use_{kind}")
        if kind != _FLASH:
            patches.on_close(set_kind, allowed[kind])

        def allow(enabled: bool, kind: str = kind, set_kind: Any = set_kind) -> None:
            set_kind(enabled)
            allowed[kind] = enabled
            set_flash(any(allowed.values()))

        patches.set(_C, f"_set_sdp_use_{kind}", allow)
    patches.set(_C, "_get_flash_sdp_enabled", lambda: allowed[_FLASH])
