"""``torch.library`` libraries whose kernels are for all processes, such as the bridge's own."""

from __future__ import annotations

import torch

from kernbench.torch_bridge.processes.process import HERE


def library_of_all(namespace: str, kind: str = "IMPL") -> torch.library.Library:
    """Return a library whose kernels are for all processes."""
    before, HERE.is_importing = HERE.is_importing, True
    try:
        made = torch.library.Library(namespace, kind)
        # Registrations through it belong to no process.
        made.m = getattr(made.m, "real", made.m)
        made.is_of_all = True
        return made
    finally:
        HERE.is_importing = before
