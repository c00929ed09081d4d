"""Make a run Triton's active driver, and undo it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton import knobs
from triton.backends import Backend, backends
from triton.backends.compiler import GPUTarget
from triton.runtime import driver as triton_driver

from kernbench.errors import UsageError, nearest
from kernbench.triton_backend import (
    autotuning,
    benchmarking,
    descriptors,
    launch_errors,
    proton,
    release_key,
    sound_cache,
)
from kernbench.triton_backend.compiler import BACKEND_NAME, KernbenchBackend
from kernbench.triton_backend.driver import ENTERED, KernbenchDriver
from kernbench.triton_backend.launcher import Launcher

_PARTS: tuple[Any, ...] = (
    autotuning.REPLACED, benchmarking.REPLACED, descriptors.REPLACED, launch_errors.REPLACED,
    proton, sound_cache, release_key,
)  # fmt: skip
"""What a run puts into Triton's place while it is active."""


@contextmanager
def activate(launcher: Launcher, torch_device: str = "cpu") -> Iterator[None]:
    """Send every Triton launch inside the ``with`` to ``launcher``.

    ``torch_device`` is the kind of device that PyTorch's tensors are on for the kernels.

    Afterwards the driver that was active before is active again, also when there was none: Triton
    then still has to choose one, as if kernbench had never been there. Runs may be nested, or
    end in another order than they began in. A driver that the program itself made active inside
    the run stays. Runs in several threads launch each to its own.

    Raises:
        UsageError: Triton is told to interpret kernels, and would launch nothing.
    """
    if knobs.runtime.interpret:
        raise UsageError(
            "TRITON_INTERPRET is set, so kernels would run in Triton's interpreter and not on the "
            "simulated machine; unset it"
        )
    # Missing when the entry points were not read (TRITON_BACKENDS_IN_TREE=1, a source tree).
    backends.setdefault(BACKEND_NAME, Backend(KernbenchBackend, KernbenchDriver))
    driver = KernbenchDriver(launcher, torch_device)
    # The public property would create a driver where none is wanted yet, and fail without a GPU.
    driver.previous = triton_driver._active
    triton_driver.set_active(driver)
    token = ENTERED.set(launcher)
    for part in _PARTS:
        part.install()
    try:
        yield
    finally:
        ENTERED.reset(token)
        driver.utils.release()
        _remove(driver)
        if not isinstance(triton_driver._active, KernbenchDriver):
            for part in _PARTS:
                part.remove()


_ANNOUNCED = {"cuda": GPUTarget("cuda", 80, 32), "hip": GPUTarget("hip", "gfx942", 64)}


def check_announced(backend: str | None) -> None:
    """Refuse a target that :func:`announced_target` cannot announce.

    Raises:
        UsageError: No GPU of that name is known.
    """
    if backend is not None and backend not in _ANNOUNCED:
        raise UsageError(f"unknown target {backend!r}: {nearest(backend, _ANNOUNCED)}")


@contextmanager
def announced_target(backend: str | None, arch: int | str | None = None) -> Iterator[None]:
    """Announce a GPU's target to programs that ask the active run; None changes nothing.

    ``arch`` replaces the architecture that is announced with it. Triton itself goes on compiling
    for kernbench.

    Raises:
        UsageError: No GPU of that name is known, or no run is active.
    """
    check_announced(backend)
    driver = triton_driver._active
    if not isinstance(driver, KernbenchDriver):
        raise UsageError("a target can be announced only inside a run")
    before = driver.announced
    if backend is not None:
        known = _ANNOUNCED[backend]
        driver.announced = GPUTarget(known.backend, arch or known.arch, known.warp_size)
    try:
        yield
    finally:
        driver.announced = before


def _remove(driver: KernbenchDriver) -> None:
    if triton_driver._active is driver:
        triton_driver.set_active(driver.previous)
        return
    # A run that began after this one is still active: it must not bring this one back when it ends.
    later = triton_driver._active
    while isinstance(later, KernbenchDriver):
        if later.previous is driver:
            later.previous = driver.previous
            return
        later = later.previous
