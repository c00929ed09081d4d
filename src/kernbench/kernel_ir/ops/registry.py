"""One place per operation: its rule, its cost and its handler, in the table of its dialect."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from kernbench.commands import MathClass, NotSeparableError
from kernbench.errors import InternalError
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.evaluation.values import Held
from kernbench.kernel_ir.text.ir import Op
from kernbench.kernel_ir.text.rules import Check, Rule

Handler = Callable[["Evaluator", Op], None]


def where_known(compute: Callable[[Evaluator, Op], Held]) -> Handler:
    """Return the handler that sets what ``compute`` returns, or else emits the op on data.

    ``compute`` raises :class:`NotSeparableError` where phase 1 does not know the result.
    """

    @wraps(compute)
    def handle(run: Evaluator, op: Op) -> None:
        try:
            held = compute(run, op)
        except NotSeparableError:
            run.math(op)
        else:
            run.set(op.results[0], held)

    return handle


class Dialect:
    """The operations of one dialect, by full name.

    ``costs`` has those that become a math command on data. What that computes stands in the module
    of the same name in ``replay/numerics/ops``.
    """

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.rules: dict[str, Rule] = {}
        self.costs: dict[str, MathClass] = {}

    def op(
        self,
        *names: str,
        operands: int | tuple[int, int] | None = None,
        results: int | None = 1,
        check: Check | None = None,
        cost: MathClass | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register a handler for the named operations.

        Args:
            operands: How many, or the fewest and the most; None leaves the operation unverified.
            results: How many; None where the check counts them.
            check: Returns what else is wrong with an operation, or None.
            cost: What the math command costs that it becomes on data; None where it becomes none.
        """

        def register(handler: Handler) -> Handler:
            for name in names:
                if name in self.handlers:
                    raise InternalError(f"{name} has a handler already")
                self.handlers[name] = handler
                if operands is not None:
                    counts = (operands, operands) if isinstance(operands, int) else operands
                    self.rules[name] = Rule(counts, results, check)
                if cost is not None:
                    self.emits(name, cost=cost)
            return handler

        return register

    def emits(self, name: str, *, cost: MathClass) -> None:
        """Declare a math command, which may be no operation of TTIR but part of one."""
        if name in self.costs:
            raise InternalError(f"{name} has a cost already")
        self.costs[name] = cost

    def add(self, other: Dialect) -> None:
        """Take in the operations of another dialect."""
        for mine, theirs in (
            (self.handlers, other.handlers),
            (self.rules, other.rules),
            (self.costs, other.costs),
        ):
            twice = mine.keys() & theirs.keys()
            if twice:
                raise InternalError(f"{sorted(twice)} are in two dialects")
            mine.update(theirs)  # type: ignore[arg-type]


def joined(*dialects: Dialect) -> Dialect:
    """Return one table of all operations."""
    table = Dialect()
    for dialect in dialects:
        table.add(dialect)
    return table
