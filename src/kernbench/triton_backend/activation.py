"""Making a run Triton's active driver, and undoing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from triton import knobs
from triton.backends import Backend, backends
from triton.runtime import driver as triton_driver

from kernbench.errors import UsageError
from kernbench.triton_backend.compiler import BACKEND_NAME, KernbenchBackend
from kernbench.triton_backend.driver import KernbenchDriver
from kernbench.triton_backend.launcher import ENTERED, Launcher


@contextmanager
def activate(launcher: Launcher) -> Iterator[None]:
    """Send every Triton launch inside the ``with`` to ``launcher``.

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
    driver = KernbenchDriver(launcher)
    # The public property would create a driver where none is wanted yet, and fail without a GPU.
    driver.previous = triton_driver._active
    triton_driver.set_active(driver)
    token = ENTERED.set(launcher)
    try:
        yield
    finally:
        ENTERED.reset(token)
        driver.utils.release()
        _remove(driver)


def _remove(driver: KernbenchDriver) -> None:
    if triton_driver._active is driver:
        triton_driver.set_active(driver.previous)
        return
    # A run that began after this one goes on: it must not bring this one back when it ends.
    later = triton_driver._active
    while isinstance(later, KernbenchDriver):
        if later.previous is driver:
            later.previous = driver.previous
            return
        later = later.previous
