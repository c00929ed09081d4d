"""Libraries whose kernels are those of all processes, as the bridge's own are."""

from __future__ import annotations

import torch

from kernbench.torch_bridge.processes.process import HERE


def library_of_all(namespace: str, kind: str = "IMPL") -> torch.library.Library:
    """Return one."""
    before, HERE.is_importing = HERE.is_importing, True
    try:
        made = torch.library.Library(namespace, kind)
        # Whoever registers something through it.
        made.m = getattr(made.m, "real", made.m)
        made.is_of_all = True
        return made
    finally:
        HERE.is_importing = before
