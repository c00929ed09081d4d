"""The host of a rank whose program does not run: it spends what the program's host has spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.errors import UsageError
from kernbench.torch_bridge.base.host_times import HostTimes
from kernbench.torch_bridge.kept.hosts import named_times
from kernbench.torch_bridge.processes.eager_host import EagerHost, as_disturbed
from kernbench.torch_bridge.processes.host import Host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernbench.clock import Handle
    from kernbench.hardware import HostSpec, Machine
    from kernbench.runtime_api import Run


class _KnownCalls:
    """In place of a count: as many calls of Python as were counted then."""

    num_views = num_shared = 0

    def __init__(self) -> None:
        self.number = 0

    def take(self) -> int:
        number, self.number = self.number, 0
        return number


class PlayedHost(EagerHost):
    """A host that takes time for what a program did between launches."""

    calls: Any

    def __init__(self, run: Run, rank: int, spec: HostSpec) -> None:
        super().__init__(run, rank, spec)
        self.calls = _KnownCalls()
        self._late: tuple[int, int] | None = None
        self._num_looks = 0

    def owe(self, num_calls: int, owed_ps: int) -> None:
        """Owe calls of Python, and operations."""
        self.calls.number = num_calls
        self._owed_ps = owed_ps

    def wait_and_owe(self, handle: Handle, num_calls: int, owed_ps: int) -> None:
        """Wait, and owe something once that is over, which is part of the wait."""
        self._late = (num_calls, owed_ps)
        self._num_looks = 0
        self.wait(handle)
        self._late = None

    def _paid_ps(self, start_ps: int) -> int:
        if self._late is not None:
            self._num_looks += 1
            if self._num_looks > 1:
                # The first time is before it waits.
                self.owe(*self._late)
        return super()._paid_ps(start_ps)


class Debts:
    """What hosts owe at each payment, on a machine: the numbers of its ``host`` section."""

    def __init__(self, machine: Machine, described: Mapping[str, Any]) -> None:
        """Add up what is owed; ``described`` are the actions that were kept.

        Raises:
            UsageError: The machine takes time for Python, whose calls were not counted.
        """
        spec = machine.spec.host
        self.spec = spec
        self._owed_ps = [0]
        if spec is None:
            return
        if not described.get("counts_python"):
            raise UsageError(
                f"machine {machine.name} has a host section, but the run was saved on one without: "
                "what the program's Python and its operations take on a host was not counted; run "
                "the program on a machine with a host section, such as h100-sxm, to retime it"
            )
        times = dict(named_times(HostTimes(spec)))
        self._owed_ps += [
            sum(times[name] * count for name, count in item) for item in described["owed"]
        ]

    def host(self, run: Run) -> Host:
        """Return the host of the rank that runs now."""
        rank = run.rank_state.rank
        result = Host(run, rank) if self.spec is None else PlayedHost(run, rank, self.spec)
        return as_disturbed(run, result)

    def wait(self, host: Host, handle: Handle, num_calls: int, number: int) -> None:
        """Let a host wait, and owe this once it has."""
        if isinstance(host, PlayedHost):
            host.wait_and_owe(handle, num_calls, self._owed_ps[number])
        else:
            host.wait(handle)

    def owe(self, host: Host, num_calls: int, number: int) -> None:
        """Let a host owe calls of Python, and what has a number in the kept actions."""
        if isinstance(host, PlayedHost):
            host.owe(num_calls, self._owed_ps[number])
