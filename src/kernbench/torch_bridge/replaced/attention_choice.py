"""The kinds of attention that a program allows: all of CUDA's fast ones are flash attention.

PyTorch's choice for the CPU, which is used here, knows only flash attention and plain operations: a
program that allows only memory-efficient or cuDNN attention would have no choice.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches

_C: Any = torch._C
_FLASH = "flash"
_KINDS = (_FLASH, "mem_efficient", "cudnn")
_OTHERS = ("overrideable", "math")


def install(patches: Patches) -> None:
    """Let C++ allow flash attention while the program allows any fast kind.

    Afterwards what was allowed before is allowed again: a program of one process shares the flags
    of the process that it runs in.
    """
    for kind in (*_KINDS, *_OTHERS):
        is_allowed = getattr(_C, f"_get_{kind}_sdp_enabled")()
        patches.on_close(getattr(_C, f"_set_sdp_use_{kind}"), is_allowed)
    allowed = {kind: getattr(_C, f"_get_{kind}_sdp_enabled")() for kind in _KINDS}
    set_flash = _C._set_sdp_use_flash
    for kind in _KINDS:
        set_kind = getattr(_C, f"_set_sdp_use_{kind}")

        def allow(enabled: bool, kind: str = kind, set_kind: Any = set_kind) -> None:
            set_kind(enabled)
            allowed[kind] = enabled
            set_flash(any(allowed.values()))

        patches.set(_C, f"_set_sdp_use_{kind}", allow)
    patches.set(_C, "_get_flash_sdp_enabled", lambda: allowed[_FLASH])
