"""Which release of PyTorch the kernels are of: the installed one, or an older one."""

from __future__ import annotations

import os

import torch

from kernbench.errors import UsageError

ASKED = "KERNBENCH_TORCH_KERNELS"


def release() -> tuple[int, ...]:
    """Return the release whose kernels are timed, as numbers.

    Raises:
        UsageError: ``KERNBENCH_TORCH_KERNELS`` is no release.
    """
    asked = os.environ.get(ASKED)
    try:
        return tuple(int(each) for each in (asked or torch.__version__).split(".")[:2])
    except ValueError:
        raise UsageError(f"{ASKED}={asked} is no release of PyTorch, such as 1.12") from None
