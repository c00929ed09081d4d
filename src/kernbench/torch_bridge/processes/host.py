"""The host of a rank: its clock, and the commands that it launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

from kernbench.clock import Handle, Stream, StreamCommand
from kernbench.library_kernels import AutogradPhase
from kernbench.op_log import Template
from kernbench.runtime_api import Action, Run
from kernbench.torch_bridge.base.operation_timing import GraphRun, OperationTiming, phase_now
from kernbench.torch_bridge.base.operations import Operation
from kernbench.torch_bridge.processes.bursts import Burst
from kernbench.torch_bridge.processes.commands import HostCopy
from kernbench.torch_bridge.processes.python_calls import PythonCalls

READING_PS = 100_000
"""The time of reading a clock, with the Python code around it: time never stands still."""
_LOOKING_PS = 10**9
"""A host that has only read clocks for this long is assumed to wait for a point in time."""
_TURNS_SHIFT = 10
"""It then yields after each 1/1024 of the time that it has waited."""
_SPINS_SHIFT = 6
"""One that spins looks again after 1/64 of that time, a millisecond at most."""
_LOOKS_SHIFT = 19
"""After half a million reads, a read takes 1/524288 of that time, which exceeds the usual time."""


_OF_TRIALS = (
    "launch", "put", "copy", "wait", "_put_span", "_take", "taken", "tries", "_ahead_ps",
    "_owed_ps",
)  # fmt: skip
"""What a host has otherwise while something is tried, and gets back."""


def to_ps(time: timedelta) -> int:
    """Return a time in picoseconds."""
    return int(time / timedelta(microseconds=1)) * 10**6


class Host:
    """The host clock of a rank, which runs ahead of the simulation's until the rank must wait.

    Launching costs host time, which nothing else in the run affects; so it is only added up here,
    and commands carry the earliest time at which they may start. The rank yields to others when
    it waits, not when it launches.
    """

    def __init__(self, run: Run, rank: int) -> None:
        self._run = run
        self.rank = rank
        self.state = run.rank_state
        self._env = run.simulation.env
        self._put_span = run.recorder.span
        self._put_wait = run.op_log.plain_waits.extend
        self._launch_times_ps: dict[int, int] = {}
        """The launch time of each SIP."""
        self._streams: dict[int, Stream] = {}
        """Queues of the default streams, by SIP."""
        self.calls: PythonCalls | None = None
        """Its calls of Python functions, where these take time."""
        self._ahead_ps = 0
        self._looked_ps = -1
        self._looks_since_ps = 0
        """When it began to do nothing but read a clock."""
        self._lap_ps = self._lap_end_ps = self._spins_since_ps = 0
        """How long it worked between the latest two times that it gave way, when it last did, and
        since when that has been the same."""
        self._slept_ps = 0
        """How long threads have slept."""
        self._slept_until_ps = 0
        self._worked_ps = 0
        self.graph: GraphRun | None = None
        """The compiled graph that runs."""
        self.alarm_ps: int | None = None
        """When the process receives a signal that it has asked for, if it has."""
        self.rings: Callable[[], bool] = lambda: False
        """Delivers it, and returns whether the calling thread is the one that receives it."""
        self.tries: Callable[[Template], None] | None = None
        """Takes what is launched while something is tried (:meth:`trying`)."""
        self.notes: Callable[[Action, str | int, str, int], None] | None = None
        """Notes what the program asks of the host, in a run that is kept. It is called from here:
        a method in the place of one of these would be one more call of Python, and counted."""
        self.launches_as: Literal["launch", "capture"] = "launch"
        """The name of launches in the op log."""

    @property
    def now_ps(self) -> int:
        return max(self._ahead_ps, self._run.simulation.now_ps)

    @property
    def paid_ps(self) -> int:
        """The time up to which the log has what the host did; asking for it takes none."""
        return max(self._ahead_ps, self._env.now_ps)

    def be_unseen(self) -> None:
        """Log nothing more: it is the host of a worker, beside that of its rank."""
        self._put_span = self._put_wait = lambda _: None

    def look_at_clock(self) -> int:
        """Return the host's time, plus the time that reading it takes.

        A host that only reads clocks waits for a time: it yields, and sees ever later times.
        """
        now_ps = self.now_ps
        if now_ps != self._looked_ps:
            self._looks_since_ps = now_ps
        waited_ps = now_ps - self._looks_since_ps
        self._looked_ps = self._ahead_ps = now_ps + max(READING_PS, waited_ps >> _LOOKS_SHIFT)
        if waited_ps > _LOOKING_PS:
            simulation = self._run.simulation
            lead_ps = self._ahead_ps - simulation.now_ps
            if lead_ps > waited_ps >> _TURNS_SHIFT:
                simulation.idle(lead_ps, "reading the clock")
        if self.notes is not None:
            self.notes(Action.HOST_CLOCK, 0, "readings of clocks", 0)
        return self._ahead_ps

    def look_at_work(self) -> int:
        """Return for how long the host has not slept, after the time that reading it takes.

        To wait for a device or for another rank is work: the driver and NCCL spin meanwhile.
        """
        # Sleep is counted at its end; other threads may have read a later time by then.
        self._worked_ps = max(self._worked_ps, self.look_at_clock() - self._slept_ps)
        return self._worked_ps

    # A host with times of its own (EagerHost) owes them for these; here a launch has one time.

    def meet(self, operation: Operation, args: Any) -> None:
        """Owe the time of an operation on a device, which is paid at the next launch."""

    def owe_for(self, once: str, counted: str = "", count: int = 0) -> None:
        """Owe a time of the host by its name in ``HostTimes``, and another one so many times."""

    def owe_triton(self, num_arguments: int) -> None:
        """Owe the launcher's time of a Triton kernel."""
        kind = "triton" if self.graph is None else "compiled"
        self.owe_for(f"{kind}_launch_ps", f"{kind}_argument_ps", num_arguments)

    def owe_graph_call(self, num_guards: int, inputs: Sequence[object]) -> None:
        """Owe the entry to a compiled graph: guards, and the wrappers of autograd."""

    def phase(self) -> AutogradPhase:
        """Return the phase of the program that runs."""
        return phase_now() if self.graph is None else self.graph.phase

    def read(self) -> None:
        """Spend the time of a read of the device, after the host has waited for it."""

    def allocate_segment(self) -> None:
        """Spend the driver's time for a segment of device memory."""

    def spend(self, label: str) -> int:
        """Spend the host time of one launch, and return its end."""
        start_ps = self._ahead_ps
        now_ps = self._env.now_ps
        if start_ps < now_ps:
            start_ps = now_ps
        launch_ps = self._launch_times_ps.get(self.state.sip_id)
        end_ps = self._ahead_ps = start_ps + (launch_ps or self._launch_ps())
        self._put_span((self.rank, self.launches_as, label, start_ps, end_ps))
        return end_ps

    def launch(self, name: str, timing: OperationTiming, sip_id: int) -> None:
        """Enqueue an operation on the current stream of a device, at the cost of a launch."""
        earliest_ps = self.spend(name)
        queue = self.queue_of(sip_id)
        tail = queue.tail
        if type(tail) is Burst and tail.join(earliest_ps, timing):
            return
        self.begin_burst(queue, earliest_ps, timing)

    @contextmanager
    def trying(self, launched: Callable[[Template], None] | None) -> Iterator[None]:
        """Give what is launched to a function instead of launching it; the host takes no time.

        With None nothing has a time, and no schedule is computed.
        """

        def launch(name: str, timing: OperationTiming, at: object) -> None:
            if launched is not None:
                launched(timing.template(False))

        def copy(template: Template, sip_id: int) -> Handle:
            if launched is not None:
                launched(template)
            return self._run.simulation.ended(template.name)

        def wait(handle: Handle) -> None:
            # What is on the timeline is of before: a trial does not wait until it is over.
            if type(handle) is not Burst:
                type(self).wait(self, handle)

        def take() -> int:
            # What it owes is no time of the run, and no time at all where its debt counts.
            own["_owed_ps"] = 0
            return 0

        # Not on the class: what keeps a run has hosts of its own.
        own = vars(self)
        before = {name: own[name] for name in _OF_TRIALS if name in own}
        calls = self.calls
        num_views = 0 if calls is None else calls.num_views
        own.update(launch=launch, put=launch, copy=copy, wait=wait, tries=launched)
        # Calls that the program made before are its own, and what it owes: no clock pays for them.
        own.update(_put_span=lambda _: None, _take=take, taken=(0, 0), _owed_ps=0)
        try:
            yield
        finally:
            for name in _OF_TRIALS:
                own.pop(name, None)
            own.update(before)
            if calls is not None:
                calls.num_views = num_views

    def put(self, name: str, timing: OperationTiming, queue: Stream) -> None:
        """Do what :meth:`launch` does, on a given stream."""
        earliest_ps = self.spend(name)
        tail = queue.tail
        if not (type(tail) is Burst and tail.join(earliest_ps, timing)):
            self.begin_burst(queue, earliest_ps, timing)

    def begin_burst(self, queue: Stream, earliest_ps: int, timing: OperationTiming) -> Burst:
        """Enqueue a burst that begins with an operation."""
        burst = Burst(self._run, queue, queue.sip_id)
        burst.join(earliest_ps, timing)
        queue.submit(burst)
        return burst

    def queue_of(self, sip_id: int) -> Stream:
        """Return the queue of the current stream of a device."""
        chosen = self.state.stream
        if chosen is not None and chosen.sip_id == sip_id:
            queue: Stream = chosen.queue
            return queue
        return self._streams.get(sip_id) or self._stream(sip_id)

    def copy(self, template: Template, sip_id: int) -> StreamCommand:
        """Enqueue a copy from or to the host on the current stream of a device."""
        queue = self._run.queue_for(sip_id)
        command = HostCopy(self._run, template, queue, sip_id)
        command.earliest_ps = self.spend(template.name)
        queue.submit(command)
        return command

    def enqueue(self, command: StreamCommand, stream: Stream) -> None:
        """Enqueue a command whose cost to the host is negligible."""
        command.earliest_ps = self.now_ps
        stream.submit(command)

    def passes(self, handle: Handle, stream: Stream) -> None:
        """Let a stream wait for what has already ended: nothing is to be done."""

    def timer(self) -> Handle:
        """Return a handle that ends at this host's time."""
        simulation = self._run.simulation
        return simulation.timer(self.now_ps - simulation.now_ps, "the host's launch")

    def poll(self, label: str = "a query of the device") -> None:
        """Let the simulation reach this host's time for a query, at the cost of a launch."""
        simulation = self._run.simulation
        self._ahead_ps = self.now_ps + self._launch_ps()
        simulation.idle(self._ahead_ps - simulation.now_ps, label)
        if self.notes is not None:
            self.notes(Action.HOST_POLL, label, "queries whether something has ended", 0)

    def glance(self, label: str) -> None:
        """Yield to other ranks: a program may poll for what they do."""
        simulation = self._run.simulation
        self._ahead_ps = self.now_ps + READING_PS
        simulation.idle(self._ahead_ps - simulation.now_ps, label)
        if self.notes is not None:
            self.notes(Action.HOST_GLANCE, label, "looks at what other ranks have done", 0)

    def give_way(self, label: str) -> None:
        """Let others run, for a loop that spins, with laps alike, until one of them has written.

        It looks again once another rank has had a turn, or after a share of the time it has spun.
        """
        now_ps = self.now_ps
        lap_ps = now_ps - self._lap_end_ps
        if lap_ps != self._lap_ps:
            self._lap_ps, self._spins_since_ps = lap_ps, now_ps
        spun_ps, simulation = now_ps - self._spins_since_ps, self._run.simulation
        self._ahead_ps = now_ps + READING_PS
        delay_ps = self._ahead_ps - simulation.now_ps + min(spun_ps >> _SPINS_SHIFT, _LOOKING_PS)
        simulation.look_again(delay_ps, label, repeats=spun_ps > 0)
        self._lap_end_ps = self.now_ps
        if self.notes is not None:
            self.notes(Action.HOST_GLANCE, label, "looks at what other ranks have done", 0)

    def work(self, label: str, taken_ps: int) -> None:
        """Spend time on what launches nothing; no other rank runs meanwhile."""
        start_ps = self.now_ps
        self._ahead_ps = start_ps + taken_ps
        self._put_span((self.rank, "python", label, start_ps, self._ahead_ps))

    def sleep(self, delay_ps: int) -> None:
        """Let time pass for the calling thread, until the simulation reaches it.

        The host does not spend it: other threads of the process may launch meanwhile. An alarm
        may ring meanwhile, whose handler takes time of the sleep.
        """
        end_ps = self.now_ps + delay_ps
        while self.alarm_ps is not None and self.alarm_ps <= end_ps:
            self._sleep(max(self.alarm_ps - self.now_ps, 0))
            if not self.rings():
                break
        self._sleep(max(end_ps - self.now_ps, 0))
        if self.notes is not None:
            self.notes(Action.HOST_SLEEP, delay_ps, "", 0)

    def _sleep(self, delay_ps: int) -> None:
        simulation = self._run.simulation
        since_ps = self.now_ps
        simulation.idle(since_ps - simulation.now_ps + delay_ps, "time.sleep")
        end_ps = simulation.now_ps
        self._slept_ps += max(end_ps - max(since_ps, self._slept_until_ps), 0)
        self._slept_until_ps = max(end_ps, self._slept_until_ps)

    def catch_up(self) -> None:
        """Let the simulation reach this host's time; other ranks run meanwhile."""
        simulation = self._run.simulation
        lead_ps = self._ahead_ps - simulation.now_ps
        if lead_ps > 0:
            simulation.sleep(lead_ps)

    reach = catch_up
    """The same as a part of something else that the bridge does."""

    def wait(self, handle: Handle) -> None:
        """Block the rank until ``handle`` has ended in simulated time, and raise its error."""
        since_ps = self.now_ps
        simulation = self._run.simulation
        if self._run.has_symmetric:
            # PyTorch's operations may have written what a kernel waits for.
            self._run.signals.recorded()
        simulation.wait(handle)
        handle.waited_for()
        end_ps = self.now_ps
        if end_ps > since_ps:
            self._put_span((self.rank, "wait", handle.label, since_ps, end_ps))
            self._put_wait((self.rank, end_ps, handle.ended_by))
        if self.alarm_ps is not None and end_ps >= self.alarm_ps:
            self.rings()

    def _stream(self, sip_id: int) -> Stream:
        stream = self._streams[sip_id] = self._run.devices.sip(sip_id).queue
        return stream

    def _launch_ps(self) -> int:
        sip_id = self.state.sip_id
        launch_ps = self._launch_times_ps[sip_id] = self._run.machine.sip_at(sip_id).host_launch_ps
        return launch_ps


class Disturbed:
    """What makes a host one that is interrupted, or that ends at a time (ADR-0176).

    It stands before the class of a host of whose work it takes the time; what keeps or plays the
    host's actions stands before it.
    """

    rank: int
    _run: Run
    _env: Any
    _ahead_ps: int
    _put_span: Any
    dies_ps: int | None = None
    """When its process ends by a fault: its Python does nothing later than that."""

    def spend(self, label: str) -> int:
        start_ps = max(self._ahead_ps, self._env.now_ps)
        end_ps: int = super().spend(label)  # type: ignore[misc]
        self._ahead_ps = late_ps = self._disturbed(start_ps, end_ps)
        self._die()
        return late_ps

    def _paid_ps(self, start_ps: int) -> int:
        end_ps: int = super()._paid_ps(start_ps)  # type: ignore[misc]
        return self._disturbed(start_ps, end_ps)

    def _disturbed(self, start_ps: int, end_ps: int) -> int:
        """Return when the host ends what would last from start to end."""
        noise = self._run.host_noise
        if noise is None or end_ps <= start_ps:
            return end_ps
        late_ps = noise.delay_ps(self.rank, start_ps, end_ps)
        if late_ps:
            self._put_span((self.rank, "interruption", "of the host", end_ps, end_ps + late_ps))
        return end_ps + late_ps

    def _die(self) -> None:
        """Wait for the end of the process, if the host has come to it."""
        if self.dies_ps is not None and self._ahead_ps >= self.dies_ps:
            simulation = self._run.simulation
            simulation.sleep(max(self.dies_ps - simulation.now_ps, 0) + 1)


class DisturbedHost(Disturbed, Host):
    """A host whose launches have one time, disturbed."""


def disturb_host(host: Host, plain: type[Host]) -> Host:
    """Let a host be disturbed that is of the class that ``plain`` disturbs, or of one above."""
    kind = type(host)
    is_above = issubclass(plain, kind)
    host.__class__ = plain if is_above else type(f"Disturbed{kind.__name__}", (kind, plain), {})
    return host
