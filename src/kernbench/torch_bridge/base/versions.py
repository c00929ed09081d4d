"""Which releases of PyTorch the bridge supports: it replaces private parts of each."""

from __future__ import annotations

from importlib import metadata

from kernbench.errors import KernbenchError

SUPPORTED = ("2.12", "2.13", "2.14", "2.15")
"""Minor releases that the bridge was tested with."""


class TorchVersionError(KernbenchError, ImportError):
    """PyTorch is missing, or a release that the bridge does not support."""


def check_torch() -> str:
    """Return the installed release of PyTorch, without importing it.

    Raises:
        TorchVersionError: There is none, or it is not supported.
    """
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise TorchVersionError(
            'PyTorch programs need PyTorch, which is not installed; pip install "kernbench[torch]"'
        ) from None
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        raise TorchVersionError(
            f"kernbench works with PyTorch {', '.join(SUPPORTED)}, but {found} is "
            f'installed; pip install "torch=={SUPPORTED[-1]}.*"'
        )
    return found
