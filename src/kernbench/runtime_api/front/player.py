"""Does what the ranks of a saved run did, rank by rank, in a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kernbench.clock import Handle, Stream, StreamCommand, UserSite, on_greenlet
from kernbench.errors import UsageError
from kernbench.kernel_time import KernelOperand, KernelOperands, meet_operands
from kernbench.runtime_api.base.streams import Marker, WaitFor
from kernbench.runtime_api.base.transfers import DeviceCommand
from kernbench.runtime_api.collectives.collective import Collective, LoneCollective
from kernbench.runtime_api.collectives.work import Part, Signature
from kernbench.runtime_api.front.context import RuntimeContext
from kernbench.runtime_api.front.multiprocessing import SpawnContext
from kernbench.runtime_api.launches.kept_launches import launch_of
from kernbench.runtime_api.launches.kernel_plan import KernelEntry
from kernbench.runtime_api.launches.launcher import KernelLaunch
from kernbench.saved import ON_HANDLES, Action, Actions

if TYPE_CHECKING:
    from kernbench.collectives import Schedule
    from kernbench.op_log import Template
    from kernbench.runtime_api.base.folding import CollectiveTimes, Place
    from kernbench.runtime_api.base.rank_state import RankState

_WIDTH = 4
P = TypeVar("P", bound="PlayedPart")


class NamedElements(NamedTuple):
    """What a collective needs to know of an element type."""

    name: str
    itemsize: int


class KeptLaunch(StreamCommand):
    """A kernel that decides by data: it takes as long as it did."""

    def __init__(self, player: Player, value: Mapping[str, Any], queue: Stream) -> None:
        run, state = player.run, player.run.rank_state
        super().__init__(run.simulation.env, value["name"])
        self._run, self._queue = run, queue
        self.template: Template = player.changed(player.template_of(value["launch"]))
        self._operands = KernelOperands(KernelOperand(*item) for item in value["operands"])
        self._addresses = tuple(value["addresses"])
        self._rank, self._sip_id = state.rank, queue.sip_id
        self._sip = run.devices.sip(queue.sip_id)
        self.engine = self._sip.pes

    def begin(self) -> int:
        meet_operands(self._sip.cache, self._operands, self._addresses)
        return self.template.duration_ps

    def finish(self) -> None:
        self.ended_by = self._run.recorder.command(
            self.template, self._rank, self._sip_id, self.start_ps, self.end_ps,
            self._queue.name, self.after, self._addresses,
        )  # fmt: skip


class PlayedPart(Part):
    """A rank's part in a collective, without tensors."""

    spans: tuple[int, ...] = ()
    """First addresses, and those after the last, of what it uses of the cache."""

    def record(self, schedule: Schedule, parts: Sequence[Part]) -> None:
        for part in parts:
            assert isinstance(part, PlayedPart)
            cache = self._run.devices.sip(part.sip_id).cache
            spans = iter(part.spans)
            for start, end in zip(spans, spans, strict=True):
                cache.touch(start, end)


class Player:
    """A run that does what another one did."""

    def __init__(
        self, context: RuntimeContext, actions: Actions, template_of: Callable[[int], Template]
    ) -> None:
        self.context, self.run = context, context.run
        self.template_of = template_of
        """Returns how a command of the saved run ran, by its launch id."""
        described = actions.described
        self.works, self.texts = described["works"], described["texts"]
        self.tuples: list[tuple[int, ...]] = list(map(tuple, described["tuples"]))
        self.streams = self._make_streams(described["streams"])
        self._meeting_of = described["meetings"]
        self._meetings: dict[int, Collective] = {}
        self.num_kept = 0
        """The number of meetings, those with the lowest numbers, of which it is asked when they
        ran."""
        self._actors = actions.actors
        self._wanted = _wanted(actions)
        self._handles: dict[tuple[int, int], Handle] = {}
        self._spawns: list[SpawnContext] = []
        self.entries: dict[int, KernelEntry] = {}
        self._launches: dict[int, Any] = {}
        self._signatures: dict[int, Signature] = {}
        self.change: Callable[[Template], Template] | None = None
        """Returns what takes the place of a template, in a run that tries something."""
        self.nobody_waits = False
        """Whether a collective begins for each rank when that rank comes to it."""
        self._lone_times_ps: dict[Any, int] = {}
        self._memory_events: dict[int, dict[int, list[int]]] = {}
        """Events of memory that come before an action, by its actor and its place."""
        self.memory_times_ps: dict[int, int] = {}
        """When they happened, by their numbers."""
        self.kept = dict.fromkeys(
            work["name"] for work in self.works if work["kind"] == "decided by data"
        )
        """Names of kernels that take as long as they did."""
        self.kept_launches: list[tuple[int, KeptLaunch]] = []
        """Their launches, with the numbers of their works."""
        self.do: dict[int, Callable[[RankState, int, int, int], Handle | None]] = {
            Action.LAUNCH: self._launch,
            Action.TRANSFER: self._transfer,
            Action.KEPT_LAUNCH: self._launch_kept,
            Action.HOST_LAUNCH: lambda state, work, *_: self.run.pass_launch_time(
                state, self.works[work]["name"]
            ),
            Action.BLOCK: lambda _, actor, place, __: self.run.block_on(self.handle(actor, place)),
            Action.POLL: self._poll,
            Action.MARK: self._mark,
            Action.STREAM_WAITS: self._let_stream_wait,
            Action.STREAM_IS_BEHIND: self._put_stream_behind,
            Action.ARRIVE: self._arrive,
            Action.BIND: self._bind,
            Action.SPAWN: self._spawn,
            Action.JOIN: lambda _, spawn, *__: self._spawns[spawn].join(),
            Action.DRAIN: lambda *_: self.run.simulation.drain(),
        }

    def play(self, number: int = 0) -> None:
        """Do what an actor did; number 0 is main, which starts the others."""
        actor, do, state = self._actors[number], self.do, self.run.rank_state
        wanted = self._wanted.get(number, set())
        values = iter(actor.values)
        events = self._memory_events.get(number, {})
        place = -1
        for place, (action, a, b, c) in enumerate(zip(*[values] * _WIDTH, strict=True)):
            if place in events:
                self._note(events[place], state)
            handle = do[action](state, a, b, c)
            if place in wanted:
                assert handle is not None
                self._handles[number, place] = handle
        self._note(events.get(place + 1, ()), state)

    def keep_memory(self, events: Any) -> None:
        """Note when memory is allocated and freed: rows of a number, an actor and a place."""
        for number, actor, place in events.tolist():
            self._memory_events.setdefault(actor, {}).setdefault(place, []).append(number)

    def _note(self, events: Sequence[int], state: RankState) -> None:
        self.memory_times_ps.update(dict.fromkeys(events, self.time_ps(state)))

    def time_ps(self, state: RankState) -> int:
        """Return the time up to which a rank has come."""
        return self.run.simulation.now_ps

    def _make_streams(self, numbers: Sequence[Sequence[int]]) -> list[Stream]:
        devices, machine = self.run.devices, self.run.machine
        most = max((sip for sip, _ in numbers), default=0)
        if most >= machine.num_sips:
            raise UsageError(
                f"the run used SIP {most}, but machine {machine.name} has {machine.num_sips} SIPs "
                f"(0 to {machine.num_sips - 1}); name a larger one (--machine NAME:{most + 1})"
            )
        for sip, index in sorted(map(tuple, numbers)):
            while len(devices.queues(sip)) <= index:
                devices.add_queue(sip)
        return [devices.queues(sip)[index] for sip, index in numbers]

    def handle(self, actor: int, place: int) -> Handle:
        """Return what an action has made."""
        result = self._handles.get((actor, place))
        if result is None:
            raise UsageError(
                "the run cannot be done again on this machine: a rank waits for what another one "
                "has not begun, as ranks pass events to each other in Python"
            )
        return result

    def _launch(self, state: RankState, work: int, addresses: int, stream: int) -> Handle:
        launched = self._launches.get(work)
        launcher = self.context.launcher
        run, queue = self.run, self.streams[stream]
        if launched is None:
            launched = launch_of(launcher.engine, self.entries, self.texts, self.works[work])
            plan = launched[0]
            plan.kernel.binary.check_room(launcher)
            launcher.engine.check(plan.trace, queue.sip_id)
            self._launches[work] = launched
        plan, policies, name, attributes, tables = launched
        launch = KernelLaunch(
            launcher, plan, policies, self.tuples[addresses], (), state, name, attributes, tables
        )
        launch.queue = queue
        run.pass_launch_time(state, name)
        run.enqueue(queue, launch)
        return launch

    def _transfer(self, state: RankState, work: int, addresses: int, stream: int) -> Handle:
        run, value, queue = self.run, self.works[work], self.streams[stream]
        template = run.transfers.build(value["name"], value["sip"], value["bytes"])
        command = DeviceCommand(run, value["sip"], template, None, self.tuples[addresses])
        command.stream = queue.name
        run.pass_launch_time(state, command.label)
        run.enqueue(queue, command)
        return command

    def _launch_kept(self, state: RankState, work: int, _: int, stream: int) -> Handle:
        queue = self.streams[stream]
        launch = KeptLaunch(self, self.works[work], queue)
        self.kept_launches.append((work, launch))
        self.run.pass_launch_time(state, launch.label)
        self.run.enqueue(queue, launch)
        return launch

    def _poll(self, state: RankState, actor: int, place: int, _: int) -> None:
        self.run.poll(self.handle(actor, place))

    def _mark(self, state: RankState, stream: int, _: int, __: int) -> Handle:
        marker = Marker(self.run)
        self.run.enqueue(self.streams[stream], marker)
        return marker

    def _let_stream_wait(self, state: RankState, actor: int, place: int, stream: int) -> None:
        awaited = self.handle(actor, place)
        if not awaited.done:
            self.run.enqueue(self.streams[stream], WaitFor(self.run, awaited))

    def _put_stream_behind(self, state: RankState, actor: int, place: int, stream: int) -> Handle:
        awaited = self.handle(actor, place)
        waiting = WaitFor(self.run, awaited)
        self.run.enqueue(self.streams[stream], waiting)
        if isinstance(awaited, PlayedPart):
            awaited.spans = ()
        return waiting

    def _arrive(self, state: RankState, meeting: int, work: int, spans: int) -> Handle:
        value = self.works[work]
        part = self.part_of(work, value, PlayedPart)
        part.spans = self.tuples[spans]
        after = state.put_behind(value["channel"], self.streams[value["stream"]], part)
        self.meet(meeting).arrive(value["position"], part, after)
        return part

    def changed(self, template: Template) -> Template:
        """Return what takes the place of a template."""
        return template if self.change is None else self.change(template)

    def meet(self, meeting: int) -> Collective | LoneCollective:
        """Return a collective by its number."""
        collective = self._meetings.get(meeting)
        if collective is None:
            value = self._meeting_of[meeting]
            if self.nobody_waits:
                return LoneCollective(self.run, tuple(value["ranks"]), self._lone_times_ps)
            collective = self._meetings[meeting] = Collective(
                self.run, value["title"], tuple(value["ranks"]), value["timeout_ps"], value["call"]
            )
            collective.keeps_placement = meeting < self.num_kept
        return collective

    def placements(self) -> Iterator[tuple[Place, CollectiveTimes]]:
        """Yield when the meetings ran that this is asked of, in the order of their numbers."""
        for number in range(self.num_kept):
            meeting = self._meetings.get(number)
            if meeting is not None and meeting.placement is not None:
                yield (meeting.title, meeting.ranks), meeting.placement

    def part_of(self, work: int, value: Mapping[str, Any], kind: type[P]) -> P:
        """Return a new part of the calling rank."""
        signature = self._signatures.get(work)
        if signature is None:
            dtype = value["dtype"]
            signature = self._signatures[work] = Signature(
                op=value["op"],
                shapes=tuple(map(tuple, value["shapes"])),
                dtype=None if dtype is None else NamedElements(*dtype),
                reduce_op=value["reduce_op"],
                root=value["root"],
                algorithm=value["algorithm"],
                num_elements=value["num_elements"],
                protocol=value["protocol"],
                called=value["name"],
            )
        part = kind(
            self.run,
            signature,
            UserSite(*value["site"]),
            tuple(value["sent"]),
            tuple(value["taken"]),
        )
        part.sip_id, part.called = value["sip"], value["called"]
        return part

    def _bind(self, state: RankState, sip: int, _: int, __: int) -> None:
        state.sip_id = sip

    def _spawn(self, state: RankState, first: int, count: int, number: int) -> None:
        spawn = SpawnContext(self.run, number)
        self._spawns.append(spawn)
        folding = self.run.folding
        running = range(count) if folding is None else folding.running
        actors = dict(zip(running, range(first, first + count), strict=True))
        nprocs = count if folding is None else folding.num_ranks
        spawn.start(lambda rank: self.play(actors[rank]), (), nprocs, lambda _: on_greenlet)


def _wanted(actions: Actions) -> dict[int, set[int]]:
    """Return for each actor the places of its actions whose handles are waited for."""
    numbers: dict[int, set[int]] = {}
    for actor in actions.actors:
        values = iter(actor.values)
        for action, a, b, _ in zip(*[values] * _WIDTH, strict=True):
            if action in ON_HANDLES:
                numbers.setdefault(a, set()).add(b)
    return numbers
