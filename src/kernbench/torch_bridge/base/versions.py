"""Which releases of PyTorch are supported, as private parts are replaced, and which are timed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata

from kernbench.errors import KernbenchError, UsageError

SUPPORTED = ("2.12", "2.13", "2.14", "2.15")
"""Minor releases that the bridge was tested with."""
CUDA_SANITIZER = "TORCH_CUDA_SANITIZER"
"""The variable that enables PyTorch's own sanitizer of streams."""
KERNELS_VARIABLE = "KERNBENCH_TORCH_KERNELS"
"""Names another release whose kernels are timed."""


class TorchVersionError(KernbenchError, ImportError):
    """PyTorch is missing, or a release that the bridge does not support."""


def check_torch() -> str:
    """Return the installed release of PyTorch, without importing it.

    Raises:
        TorchVersionError: There is none, or it is not supported.
    """
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise TorchVersionError(
            'PyTorch programs need PyTorch, which is not installed; pip install "kernbench[torch]"'
        ) from None
    if ".".join(version.split(".")[:2]) not in SUPPORTED:
        raise TorchVersionError(
            f"kernbench works with PyTorch {', '.join(SUPPORTED)}, but {version} is "
            f'installed; pip install "torch=={SUPPORTED[-1]}.*"'
        )
    return version


@contextmanager
def importing_torch() -> Iterator[None]:
    """Hide from PyTorch, as it is imported, what makes it use a GPU at once: a build without fails.

    Each process does it when it begins.
    """
    asked = os.environ.pop(CUDA_SANITIZER, None)
    try:
        yield
    finally:
        if asked is not None:
            os.environ[CUDA_SANITIZER] = asked


@cache
def _installed() -> str:
    return metadata.version("torch")


def release_of_kernels() -> tuple[int, ...]:
    """Return the release whose kernels are timed, as numbers.

    Raises:
        UsageError: ``KERNBENCH_TORCH_KERNELS`` is no release.
    """
    asked = os.environ.get(KERNELS_VARIABLE)
    try:
        return tuple(int(word) for word in (asked or _installed()).split(".")[:2])
    except ValueError:
        raise UsageError(
            f"{KERNELS_VARIABLE}={asked} is no release of PyTorch, such as 1.12"
        ) from None
