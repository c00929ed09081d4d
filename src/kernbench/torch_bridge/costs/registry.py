"""Families of operations: which calls are theirs, what determines their time, and their kernels.

Each is a module of ``families`` with a ``FAMILY``, and is found there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from kernbench.torch_bridge.base.operation_timing import OperationTiming
    from kernbench.torch_bridge.base.operations import Operation
    from kernbench.torch_bridge.costs.operations import OperationCosts

Problem = TypeVar("Problem", bound=Hashable)


class OperationCall(NamedTuple):
    """A call of an operation on a SIP, ``result = func(*args, **kwargs)``."""

    func: Any
    operation: Operation
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    sip_id: int

    @property
    def name(self) -> str:
        """The name of the operation in reports."""
        return self.operation.name

    @property
    def arguments(self) -> tuple[Any, ...]:
        """All arguments."""
        return (*self.args, *self.kwargs.values()) if self.kwargs else self.args


@dataclass(frozen=True, kw_only=True, eq=False)
class Family(Generic[Problem]):
    """Operations whose time is found in one way."""

    matches: Callable[[Any], bool]
    """Whether calls of an overload are its own; no other family may say so."""
    key: Callable[[OperationCosts, OperationCall], Problem | None]
    """Returns all that determines the time of a call besides its SIP and the operation's name, and
    notes what that time assumes; None for a call that streams its operands."""
    kernels: Callable[[OperationCosts, str, Problem, int], OperationTiming | None]
    """Returns the schedules of what a call launches, by the operation's name, the key and a SIP;
    None where the machine's library lacks the kernels, so that the call streams its operands."""
    cold: Callable[[OperationCall], Sequence[Any]] = lambda call: ()
    """Returns what a call reads that the operation before it has not made, such as weights."""
