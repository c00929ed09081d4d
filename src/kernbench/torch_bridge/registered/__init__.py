"""What programs register with PyTorch's dispatcher: each process has its own (ADR-0116)."""

from __future__ import annotations

from kernbench.torch_bridge.base.patches import Patches


def install(patches: Patches) -> None:
    """Let processes register what their devices run."""
    # It needs what needs the registrations.
    from kernbench.torch_bridge.registered import libraries

    libraries.install(patches)
