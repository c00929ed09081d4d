"""A host that takes time for what an eager program does between launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernbench.hardware import HostSpec
from kernbench.runtime_api import Run
from kernbench.torch_bridge.base.host_times import HostPart, HostTimes
from kernbench.torch_bridge.base.modes import NO_BACKWARD, graph_task
from kernbench.torch_bridge.base.operations import Operation
from kernbench.torch_bridge.processes.host import Disturbed, DisturbedHost, Host, disturb_host
from kernbench.torch_bridge.processes.python_calls import FRAMES_OF_FUNCTION, IN_THREAD, PythonCalls

_is_grad_enabled = torch.is_grad_enabled
_VIEW, _FOREACH = HostPart.VIEW, HostPart.FOREACH
_IS_TRAINING = 5
"""The place of ``training`` among the arguments of ``native_batch_norm``."""


class EagerHost(Host):
    """The host of a machine whose ``host`` section says what its CPU takes time for.

    What is owed is paid at the next launch, or when somebody looks at the clock: first the Python
    since then, then views, memory and operations.
    """

    def __init__(self, run: Run, rank: int, spec: HostSpec) -> None:
        super().__init__(run, rank)
        self.times = HostTimes(spec)
        self.calls: PythonCalls = PythonCalls()
        self.noted: Callable[[int], int] | None = None
        """Takes each number of calls, and returns the one that counts."""
        self._owed_ps = 0
        self._view_ps = self.times.called[_VIEW]
        """The time of a view before an operation like the latest one."""

    @property
    def now_ps(self) -> int:
        calls = IN_THREAD.calls
        start_ps = max(self._ahead_ps, self._env.now_ps)
        if calls is None or calls.depth:
            end_ps = self._ahead_ps = self._paid_ps(start_ps)
            return end_ps
        # The program has asked by way of the bridge alone.
        calls.pause(FRAMES_OF_FUNCTION)
        end_ps = self._ahead_ps = self._paid_ps(start_ps)
        calls.resume()
        return end_ps

    def meet(self, operation: Operation, args: Any) -> None:
        """Owe the time of an operation on a device, which is paid at the next launch."""
        times, part = self.times, operation.host_part
        if part is HostPart.BATCH_NORM and any(args[_IS_TRAINING : _IS_TRAINING + 1]):
            part = HostPart.PLANNED
        calls = self.calls
        if self.graph is not None:
            of_parts = times.in_graph
        elif graph_task() != NO_BACKWARD:
            of_parts = times.in_backward
        elif calls.is_in_cxx:
            records = _is_grad_enabled() and _requires_grad(args)
            of_parts = times.recorded_in_cxx if records else times.called_in_cxx
        else:
            records = _is_grad_enabled() and _requires_grad(args)
            of_parts = times.recorded if records else times.called
            if not (calls.is_known or calls.is_counted):
                self._owed_ps += times.uncounted_ps
        self._owed_ps += of_parts[part]
        self._view_ps = of_parts[_VIEW]
        if part is _FOREACH:
            # Of a number's powers, the exponents are the first list.
            tensors = args[0] if isinstance(args[0], (list, tuple)) else args[1]
            self._owed_ps += len(tensors) * times.foreach_tensor_ps

    def owe_for(self, once: str, counted: str = "", count: int = 0) -> None:
        times = vars(self.times)
        self._owed_ps += times[once] + (count * times[counted] if count else 0)

    def owe_graph_call(self, num_guards: int, inputs: Any) -> None:
        self.owe_for("compiled_call_ps", "compiled_guard_ps", num_guards)
        if _is_grad_enabled() and _requires_grad(inputs):
            self.owe_for("compiled_record_ps", "compiled_recorded_ps", len(inputs))

    def read(self) -> None:
        start_ps = self.now_ps
        self._ahead_ps = start_ps + self.times.read_ps
        self._put_span((self.rank, "read", "a result", start_ps, self._ahead_ps))

    def allocate_segment(self) -> None:
        start_ps = self.now_ps
        self._ahead_ps = start_ps + self.times.cuda_malloc_ps
        self._put_span((self.rank, "allocate", "cudaMalloc", start_ps, self._ahead_ps))

    def spend(self, label: str) -> int:
        start_ps = self._ahead_ps
        now_ps = self._env.now_ps
        if start_ps < now_ps:
            start_ps = now_ps
        num_calls = self._take()
        if num_calls:
            called_ps = start_ps + num_calls * self.times.python_call_ps
            self._put_span((self.rank, "python", "Python", start_ps, called_ps))
            start_ps = called_ps
        end_ps = self._ahead_ps = start_ps + self._owed_ps
        self._owed_ps = 0
        self._put_span((self.rank, self.launches_as, label, start_ps, end_ps))
        return end_ps

    def _paid_ps(self, start_ps: int) -> int:
        """Return when all that is owed is paid, from a given time on."""
        num_calls = self._take()
        if num_calls:
            end_ps = start_ps + num_calls * self.times.python_call_ps
            self._put_span((self.rank, "python", "Python", start_ps, end_ps))
            start_ps = end_ps
        if not self._owed_ps:
            return start_ps
        end_ps = start_ps + self._owed_ps
        self._owed_ps = 0
        self._put_span((self.rank, "dispatch", "operations without a kernel", start_ps, end_ps))
        return end_ps

    def _take(self) -> int:
        """Return the calls since the last time; what views took is owed then."""
        calls = self.calls
        if calls.num_views:
            self._owed_ps += calls.num_views * self._view_ps
            calls.num_views = 0
        num_calls = calls.take()
        if calls.num_shared:
            num_calls, calls.num_shared = num_calls + calls.num_shared, 0
        return self.noted(num_calls) if self.noted and num_calls else num_calls


def _requires_grad(args: Any) -> bool:
    for argument in args:
        if isinstance(argument, Tensor):
            if argument.requires_grad:
                return True
        elif type(argument) is list and _requires_grad(argument):
            return True
    return False


class DisturbedEagerHost(Disturbed, EagerHost):
    """A host that takes time for what an eager program does, disturbed."""


def as_disturbed(run: Run, host: Host) -> Host:
    """Return a host of a run, disturbed if the machine's scenario says so."""
    if run.host_noise is None and not run.machine.spec.scenario.deaths:
        return host
    return disturb_host(host, DisturbedEagerHost if isinstance(host, EagerHost) else DisturbedHost)


def host_of(run: Run, rank: int) -> Host:
    """Return the host of a rank, as the run's machine describes it."""
    if run.keeper is not None and run.keeper.make_host is not None:
        host = as_disturbed(run, run.keeper.make_host(run, rank))
    else:
        host = new_host(run, rank)
    if isinstance(host, EagerHost) and run.folding is not None:
        host.noted = run.folding.calls.of(rank)
    return host


def new_host(run: Run, rank: int) -> Host:
    """Return a host as the run's machine describes it, which no keeper notes."""
    spec = run.machine.spec.host
    return as_disturbed(run, Host(run, rank) if spec is None else EagerHost(run, rank, spec))
