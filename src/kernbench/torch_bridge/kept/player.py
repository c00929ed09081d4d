"""Does what the ranks of a PyTorch program did: hosts that run ahead, operations, collectives.

A played host spends what the program's host has spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernbench.clock import Handle, Stream
from kernbench.errors import UsageError
from kernbench.hardware import HostSpec, Machine
from kernbench.library_kernels import AutogradPhase, Reuse
from kernbench.op_log import HostRange, Template
from kernbench.runtime_api import (
    PLAIN_LAUNCH,
    Action,
    Collective,
    LoneCollective,
    Marker,
    PlayedPart,
    Player,
    RankState,
    Run,
    RuntimeContext,
    WaitFor,
    launch_of,
)
from kernbench.saved import Actions
from kernbench.torch_bridge.base.host_times import HostTimes
from kernbench.torch_bridge.base.operation_timing import OperationTiming, held_steps
from kernbench.torch_bridge.costs import OperationCosts, timing_of_call
from kernbench.torch_bridge.kept.hosts import named_times
from kernbench.torch_bridge.processes.bursts import put_in_a_row
from kernbench.torch_bridge.processes.commands import HostCopy
from kernbench.torch_bridge.processes.eager_host import EagerHost, as_disturbed
from kernbench.torch_bridge.processes.float32 import Float32
from kernbench.torch_bridge.processes.host import Host


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


class TorchPlayer(Player):
    """A run that does what a PyTorch program did."""

    def __init__(
        self, context: RuntimeContext, actions: Actions, template_of: Callable[[int], Template]
    ) -> None:
        super().__init__(context, actions, template_of)
        described = actions.described
        self._debts = Debts(context.machine, described)
        self._spends, self._labels = described["spends"], described["labels"]
        self._hosts: dict[RankState, Host] = {}
        self._earliest: dict[RankState, int] = {}
        """When what the latest launch of a rank launches reaches its device."""
        self._timings: dict[int, OperationTiming] = {}
        self._costs: dict[Float32, OperationCosts] = {}
        self._parts: dict[Collective, list[PlayedTorchPart]] = {}
        self._ranges: dict[tuple[RankState, int], int] = {}
        """When ranges have begun that are open, by their numbers."""
        self._keys: set[int] = set()
        """Keys of stores that are set."""
        self._key_waits: list[tuple[tuple[int, ...], Handle]] = []
        self.do |= {
            Action.PAY: self._pay,
            Action.SPEND: self._spend,
            Action.OPERATION: self._operate,
            Action.COPY: self._copy,
            Action.HOST_MARK: self._mark_by_host,
            Action.HOST_STREAM_WAITS: self._stream_waits_by_host,
            Action.HOST_POLL: lambda state, label, *_: self.host(state).poll(self._labels[label]),
            Action.HOST_GLANCE: lambda state, label, *_: self.host(state).glance(
                self._labels[label]
            ),
            Action.HOST_CLOCK: self._look_at_clock,
            Action.HOST_SLEEP: lambda state, delay_ps, *_: self.host(state).sleep(delay_ps),
            Action.CATCH_UP: lambda state, *_: self.host(state).catch_up(),
            Action.HOST_WAIT: self._wait_by_host,
            Action.HOST_READ: lambda state, *_: self.host(state).read(),
            Action.HOST_ALLOCATE: lambda state, *_: self.host(state).allocate_segment(),
            Action.WAIT_DATA: lambda _, actor, place, __: self.run.simulation.wait(
                self.handle(actor, place).data
            ),
            Action.SET_KEY: self._set_key,
            Action.WAIT_KEYS: self._wait_for_keys,
            Action.GRAPH_OPERATIONS: self._operate_in_a_row,
            Action.GRAPH_COPY: self._copy,
            Action.GRAPH_MARK: self._mark_by_graph,
            Action.GRAPH_STREAM_WAITS: lambda state, actor, place, stream: self._put(
                state, WaitFor(self.run, self.handle(actor, place)), self.streams[stream]
            ),
            Action.RANGE_BEGIN: self._begin_range,
            Action.RANGE_END: self._end_range,
        }

    def handle(self, actor: int, place: int) -> Any:
        if actor == Action.TAIL:
            return self.streams[place].tail
        return super().handle(actor, place)

    def host(self, state: RankState) -> Host:
        """Return the host of a rank, made when it first does something."""
        result = self._hosts.get(state)
        if result is None:
            result = self._hosts[state] = self._debts.host(self.run)
        return result

    def time_ps(self, state: RankState) -> int:
        host = self._hosts.get(state)
        return super().time_ps(state) if host is None else host.paid_ps

    def timing(self, work: int) -> OperationTiming:
        """Return the schedules of an operation on this machine."""
        operation_timing = self._timings.get(work)
        if operation_timing is None:
            result = operation_timing = self._timing_of(self.works[work])
            if self.change is not None:
                operation_timing = OperationTiming(
                    lambda queued: self.changed(result.template(queued))
                )
            self._timings[work] = operation_timing
        return operation_timing

    def _timing_of(self, value: dict[str, Any]) -> OperationTiming:
        if value["kind"] == "kernel operation":
            return self._timing_of_kernel(value)
        if value["kind"] != "as it was":
            precision = dict(value["float32"])
            for name in ("wide_sums", "whole_sums"):
                precision[name] = frozenset(precision[name])
            key = Float32(**precision)
            costs = self._costs.get(key)
            if costs is None:
                costs = self._costs[key] = OperationCosts(self.run.machine, key)
            try:
                return timing_of_call(costs, value)
            except AttributeError:
                pass
        # Of the two states of a device perhaps only one was met.
        self.kept[value["name"]] = None
        met = [self.template_of(item) if item else None for item in value["launches"]]
        idle, queued = met[0] or met[1], met[1] or met[0]
        return OperationTiming(lambda is_queued: queued if is_queued else idle)  # type: ignore[arg-type,return-value]

    def _timing_of_kernel(self, value: dict[str, Any]) -> OperationTiming:
        launcher = self.context.launcher
        plan, policies, name, _, tables = launch_of(
            launcher.engine, self.entries, self.texts, value
        )
        sip_id = value["sip"]
        plan.kernel.binary.check_room(launcher)
        launcher.engine.check(plan.trace, sip_id)
        launcher.settle(plan, sip_id, tables)
        held = held_steps(_reuse_of(value), plan, self.run.machine.sip_at(sip_id))
        return OperationTiming(
            lambda queued: launcher.template(
                plan, policies, sip_id, name, PLAIN_LAUNCH, held, queued=queued, tables=tables
            )
        )

    def _pay(self, state: RankState, num_calls: int, owed: int, _: int) -> None:
        host = self.host(state)
        self._debts.owe(host, num_calls, owed)
        host.now_ps  # noqa: B018 - it pays

    def _spend(self, state: RankState, spend: int, _: int, __: int) -> None:
        host = self.host(state)
        label, host.launches_as, num_calls, owed = self._spends[spend]
        self._debts.owe(host, num_calls, owed)
        self._earliest[state] = host.spend(label)

    def _operate(self, state: RankState, work: int, stream: int, spend: int) -> None:
        host, queue = self.host(state), self.streams[stream]
        label, host.launches_as, num_calls, owed = self._spends[spend]
        self._debts.owe(host, num_calls, owed)
        host.put(label, self._timings.get(work) or self.timing(work), queue)

    def _operate_in_a_row(self, state: RankState, row: int, stream: int, _: int) -> None:
        queue = self.streams[stream]
        timings = [self.timing(work) for work in self.tuples[row]]
        put_in_a_row(self.run, queue, queue.sip_id, self._earliest[state], timings)

    def _copy(self, state: RankState, work: int, stream: int, _: int) -> Handle:
        value, queue, run = self.works[work], self.streams[stream], self.run
        if value["kind"] == "transfer":
            template = run.transfers.build(value["name"], value["sip"], value["bytes"])
        else:
            self.kept[value["name"]] = None
            template = self.template_of(value["launches"][0])
        command = HostCopy(run, template, queue, queue.sip_id)
        self._put(state, command, queue)
        return command

    def _mark_by_host(self, state: RankState, stream: int, is_timed: int, _: int) -> Handle:
        queue = self.streams[stream]
        stamp_ps = self.run.machine.sip_at(queue.sip_id).event_ps if is_timed else 0
        marker = Marker(self.run, stamp_ps)
        self.host(state).enqueue(marker, queue)
        return marker

    def _stream_waits_by_host(self, state: RankState, actor: int, place: int, stream: int) -> None:
        awaited = self.handle(actor, place)
        if not awaited.done:
            self.host(state).enqueue(WaitFor(self.run, awaited), self.streams[stream])

    def _mark_by_graph(self, state: RankState, stream: int, _: int, __: int) -> Handle:
        marker = Marker(self.run)
        self._put(state, marker, self.streams[stream])
        return marker

    def _put(self, state: RankState, command: Any, queue: Stream) -> None:
        command.earliest_ps = self._earliest[state]
        queue.submit(command)

    def _look_at_clock(self, state: RankState, _: int, __: int, ___: int) -> None:
        self.host(state).look_at_clock()

    def _wait_by_host(self, state: RankState, actor: int, place: int, late: int) -> None:
        host, handle = self.host(state), self.handle(actor, place)
        if late:
            self._debts.wait(host, handle, *self._spends[late - 1][2:])
        else:
            host.wait(handle)

    def _begin_range(self, state: RankState, number: int, _: int, __: int) -> None:
        self._ranges[state, number] = self.host(state).now_ps

    def _end_range(self, state: RankState, label: int, number: int, _: int) -> None:
        begun_ps = self._ranges.pop((state, number), None)
        if begun_ps is not None:
            named = HostRange(state.rank, self._labels[label], begun_ps, self.host(state).now_ps)
            self.run.op_log.host_ranges.append(named)

    def _arrive(self, state: RankState, meeting: int, work: int, spans: int) -> Handle:
        value = self.works[work]
        if not value["has_host"]:
            return super()._arrive(state, meeting, work, spans)
        part = self.part_of(work, value, PlayedTorchPart)
        queue = self.streams[value["stream"]] if value["stream"] >= 0 else None
        after = [self.host(state).timer(), *state.put_behind(value["channel"], queue, part)]
        collective = self.meet(meeting)
        if isinstance(collective, LoneCollective):
            collective.arrive(value["position"], part, after)
            self.run.simulation.wake(part.data)
            return part
        self._parts.setdefault(collective, []).append(part)
        collective.arrive(value["position"], part, after, self._others(collective, state))
        if collective.is_complete:
            order = dict.fromkeys(collective.parts())
            for item in order or self._parts[collective]:
                self.run.simulation.wake(item.data)  # type: ignore[attr-defined]
            del self._parts[collective]
        return part

    def _others(self, collective: Collective, state: RankState) -> tuple[int, ...]:
        """Return the positions of those for which a rank stands; of a pair each side runs."""
        folding = self.run.folding
        if folding is None or collective.call:
            return ()
        return folding.positions(collective.ranks, state.rank)

    def _set_key(self, _: RankState, key: int, __: int, ___: int) -> None:
        self._keys.add(key)
        waits, self._key_waits = self._key_waits, []
        for wait in waits:
            if self._keys.issuperset(wait[0]):
                self.run.simulation.wake(wait[1])
            else:
                self._key_waits.append(wait)

    def _wait_for_keys(self, state: RankState, row: int, label: int, _: int) -> None:
        keys, simulation = self.tuples[row], self.run.simulation
        if self._keys.issuperset(keys):
            return
        self.host(state).reach()
        if self._keys.issuperset(keys):
            return
        wait = simulation.handle(self._labels[label])
        self._key_waits.append((keys, wait))
        simulation.wait(wait)


def _reuse_of(value: dict[str, Any]) -> Reuse | None:
    """Return what a Triton kernel found in the cache, by its description."""
    if "phase" not in value:
        return None
    cold = value["cold"]
    return Reuse(AutogradPhase(value["phase"]), cold_params=None if cold is None else tuple(cold))


class PlayedTorchPart(PlayedPart):
    """A rank's part in a collective, which others wait for at two points."""

    def __init__(self, run: Any, *value: Any) -> None:
        super().__init__(run, *value)
        self.data = run.simulation.handle(self.label)
        """Ends when all ranks have called the collective."""
