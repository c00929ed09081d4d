"""How an operation is found: one table per dialect, joined into one; a name is given once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kernbench.errors import InternalError
from kernbench.kernel_ir.text.ir import Op

if TYPE_CHECKING:
    from kernbench.kernel_ir.evaluation.evaluator import Evaluator

Handler = Callable[["Evaluator", Op], None]


class Dialect:
    """The operations of one dialect, by full name."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def op(self, *names: str) -> Callable[[Handler], Handler]:
        """Register a handler for the named operations."""

        def register(handler: Handler) -> Handler:
            for name in names:
                self.add(name, handler)
            return handler

        return register

    def add(self, name: str, handler: Handler) -> None:
        if name in self.handlers:
            raise InternalError(f"{name} has a handler already")
        self.handlers[name] = handler


def joined(*dialects: Dialect) -> dict[str, Handler]:
    """Return one table of all operations."""
    table = Dialect()
    for dialect in dialects:
        for name, handler in dialect.handlers.items():
            table.add(name, handler)
    return table.handlers
