"""The run that the calling code belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.runtime_api.front.context import RuntimeContext

# Every greenlet has a context of its own; a rank starts with its spawner's.
CURRENT: ContextVar[RuntimeContext | None] = ContextVar("kernbench_run", default=None)


def current_context() -> RuntimeContext:
    """Return the innermost run that the calling code is inside of.

    Raises:
        UsageError: There is none.
    """
    context = CURRENT.get()
    if context is None:
        raise UsageError(
            "there is no run here; use `with kernbench.RuntimeContext(machine=...) as torch:`"
        )
    return context
