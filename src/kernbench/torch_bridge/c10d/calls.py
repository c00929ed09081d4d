"""A rank's call of a collective: when it joins the others' calls, what it costs, when it ends."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils._python_dispatch import _disable_current_modes

from kernbench.clock import Handle, Simulation, Stream, UserSite, user_site
from kernbench.errors import CollectiveTimeoutError, KernbenchError, RankFailedError, UsageError
from kernbench.runtime_api import (
    Action,
    Collective,
    Part,
    ProcessGroup,
    Run,
    Signature,
    WaitFor,
    not_fitting,
)
from kernbench.torch_bridge.base.dtypes import element_type
from kernbench.torch_bridge.c10d.data import Compute, all_gather
from kernbench.torch_bridge.c10d.set_orders import unordered_loop
from kernbench.torch_bridge.dispatch.known_values import are_known, follow_collective, forget
from kernbench.torch_bridge.ordering.order import ProcessOrder
from kernbench.torch_bridge.placement.allocations import take_buffers
from kernbench.torch_bridge.placement.call_keys import is_meta
from kernbench.torch_bridge.placement.in_use import begin_use, end_use
from kernbench.torch_bridge.placement.names import EXECUTING, device_at
from kernbench.torch_bridge.placement.residence import residence_of
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.host import to_ps
from kernbench.torch_bridge.processes.process import Process, current

_HERE = str(Path(__file__).parents[1])
_CALLS = c10d.__file__
_signature = lru_cache(maxsize=4096)(Signature)
_COMPUTING = ("all_reduce", "reduce", "reduce_scatter")


def signature(
    op: str,
    tensors: Sequence[Tensor],
    num_elements: int,
    reduce_op: str = "",
    root: int = 0,
    *,
    with_shapes: bool = True,
    is_flat: bool = False,
) -> Signature:
    """Return what must be equal on all ranks.

    With ``with_shapes=False`` shapes may differ, with ``is_flat`` only sizes must be equal.
    """
    shapes = [(item.numel(),) if is_flat else tuple(item.shape) for item in tensors]
    return _signature(
        op,
        tuple(shapes) if with_shapes else (),
        element_type(tensors[0].dtype) if tensors else None,
        reduce_op,
        root,
        "auto",
        num_elements,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One rank's call of a collective: signature, tensors, and what computes the data."""

    signature: Signature
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    compute: Compute
    """Computes the outputs of all ranks from the inputs of all ranks."""
    sent: tuple[int, ...] = ()
    """In an exchange of uneven parts: the number of elements sent to each rank."""
    taken: tuple[int, ...] = ()
    called: str = ""
    """This rank's name for the operation, if ranks call it by different names."""
    follows_stream: bool = False
    """Whether it is ordered after the current stream even without device tensors."""
    is_batched: bool = False
    """Whether it is a send or receive of several that the group's own stream runs."""


class _DataThere(Handle):
    """Ends when a collective's outputs hold their values, as every rank has called it."""

    def __init__(self, simulation: Simulation, part: TorchPart) -> None:
        super().__init__(part.env, part.label)
        self._simulation = simulation
        self._part: TorchPart | None = part

    def waits_for(self) -> tuple[int, ...]:
        return () if self._part is None else self._part.waits_for()

    def describe(self) -> str:
        return self.label if self._part is None else self._part.describe()

    def end(self) -> None:
        """Resume whoever waits, and drop the part, which refers to this."""
        self._part = None
        self._simulation.wake(self)


class TorchPart(Part):
    """One rank's part in a collective of PyTorch tensors; ends when its simulated time is over.

    Its data is ready earlier, when all ranks have called: see :attr:`data`.
    """

    def __init__(self, run: Run, call: Call, site: UserSite, sip_id: int | None) -> None:
        super().__init__(run, call.signature, site, call.sent, call.taken)
        self.on_device = sip_id is not None
        if sip_id is not None:
            # Where its tensors are, which need not be the rank's current device.
            self.sip_id = sip_id
        self.call: Call | None = call
        """None once every rank has called, and the outputs hold their values."""
        self.called = call.called
        self.follows_stream = call.follows_stream
        self.data = _DataThere(run.simulation, self)
        self._used = begin_use(self, call.inputs, call.outputs)

    def has_data(self) -> None:
        """Resume whoever waits for the outputs, and release the tensors.

        The host runs ahead of the simulation: a program that frees them now can reuse their memory
        at once, as on a device, whose allocator relies on the order of streams.
        """
        self.call = None
        self.data.end()

    def end_with(self, error: KernbenchError) -> None:
        super().end_with(error)
        if self.call is not None:
            self.has_data()

    def waited_for(self) -> None:
        """Let the program read and write its tensors again."""
        end_use(self, self._used)
        self._used = []


class _Waited(Work):
    """A ``Work`` whose future is complete: C++ could not yield to other ranks while it waits."""

    def get_future(self) -> Any:
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result(self.result())
        return future


class CollectiveWork(_Waited):
    """The ``Work`` that ``torch.distributed`` returns for a call that may be pending."""

    def __init__(
        self, process: Process, part: TorchPart, outputs: Sequence[Tensor], line: Hashable = None
    ) -> None:
        super().__init__()
        self._process = process
        self._part = part
        self._outputs = outputs
        self._line = line
        """What its rank's calls run on one after the other; None if they run in any order."""
        self._before: CollectiveWork | None = None
        """The call before it on that line, until one of the two has been waited for."""
        self._is_of_program = True
        if line is not None:
            self._is_of_program = _is_of_program()
            before = process.newest_works.get(line)
            assert before is None or isinstance(before, CollectiveWork)
            self._before = before
            process.newest_works[line] = self
        # C++ refers to the work, and does not keep its Python half alive.
        process.kept.add(self)

    def wait(self, timeout: Any = None) -> bool:
        """Block until the outputs may be used; outputs on a device by what is launched later.

        With a timeout the host itself waits, at most that long.
        """
        is_limited = timeout is not None and timeout > timedelta()
        if is_limited:
            self._wait_at_most(to_ps(timeout))
        self.wait_for_data()
        host = self._process.host
        if is_limited or not self._part.on_device:
            host.wait(self._part)
            self._host_knows()
            self._process.kept.discard(self)
        else:
            self.wait_on_stream()
        return True

    def wait_on_stream(self) -> None:
        """Let the current stream wait until its part is over, though its data may not be there."""
        host, run = self._process.host, self._process.session.run
        queue = run.queue_for(self._part.sip_id)
        if self._process.order is not None:
            self._process.order.stream_waits(queue, self._part.clock)
        if not self._part.done:
            host.enqueue(WaitFor(run, self._part), queue)
        else:
            host.passes(self._part, queue)
        self._process.kept.discard(self)

    def _host_knows(self) -> None:
        """Note that the program has seen its end."""
        if self._process.order is not None:
            self._process.order.host_waits(self._part.clock)

    def _wait_at_most(self, timeout_ps: int) -> None:
        part, host = self._part, self._process.host
        simulation = self._process.session.run.simulation
        keeper = self._process.session.run.keeper
        if keeper is not None:
            keeper.refused[f"it waits for {part.name} with a timeout of its own"] = None
        lead_ps = host.now_ps - simulation.now_ps
        if not simulation.wait_at_most(part, lead_ps + timeout_ps) and part.collective is not None:
            reason = "" if part.waits_for() else "before it had ended"
            part.collective.give_up(reason, timeout_ps)

    def wait_for_data(self) -> None:
        """Block until the outputs hold their values, at whatever simulated time.

        What NCCL runs before it on the same stream has ended then, too.
        """
        for work in self._take_line():
            if not work._part.error_seen:
                work._wait_for_own_data()
                if work._is_of_program:
                    self._process.kept.discard(work)
        self._wait_for_own_data()

    def _take_line(self) -> list[CollectiveWork]:
        """Return the calls before it that nothing has waited for, oldest first, once."""
        earlier: list[CollectiveWork] = []
        work, self._before = self._before, None
        while work is not None:
            earlier.append(work)
            work._before, work = None, work._before
        if self._process.newest_works.get(self._line) is self:
            del self._process.newest_works[self._line]
        return earlier[::-1]

    def come(self) -> None:
        """Block until its outputs hold their values, or it has failed."""
        part, run = self._part, self._process.session.run
        rank = run.simulation.running
        if rank is not None and not part.data.done:
            rank.host_ps = self._process.host.paid_ps
        run.simulation.wait(part.data)

    def _wait_for_own_data(self) -> None:
        part, run = self._part, self._process.session.run
        if run.keeper is not None:
            run.keeper.waits(Action.WAIT_DATA, part)
        self.come()
        part.waited_for()
        if part.error is not None:
            part.error_seen = True
            raise part.error

    def wait_on_host(self) -> None:
        """Block the rank until its part is over in simulated time."""
        self.wait_for_data()
        self._process.host.wait(self._part)
        self._host_knows()
        self._process.kept.discard(self)

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Return whether it has ended at the host's time; the query costs the host a launch.

        Raises:
            CollectiveTimeoutError: Some rank did not call it within the group's timeout.
        """
        part = self._part
        self._process.host.poll(f"a query whether {part.name} has ended")
        # A program that has seen its end may use its tensors, as after a wait.
        if part.done or isinstance(part.error, CollectiveTimeoutError):
            self.wait_for_data()
            self._host_knows()
        return part.done

    def is_success(self) -> bool:
        return self._part.done and self._part.error is None

    def exception(self) -> Any:
        return self._part.error

    def result(self) -> list[Tensor]:
        return list(self._outputs)


class WorkGroup(_Waited):
    """The ``Work`` of several calls that are waited for together."""

    def __init__(self, process: Process, works: Sequence[CollectiveWork]) -> None:
        super().__init__()
        self._process = process
        self._works = works
        process.kept.add(self)

    def wait(self, timeout: Any = None) -> bool:
        for work in self._works:
            work.wait()
        self._process.kept.discard(self)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def result(self) -> list[Tensor]:
        return [tensor for work in self._works for tensor in work.result()]


@unseen
def post(members: ProcessGroup, call: Call, serves_host: bool) -> CollectiveWork:
    """Add the calling rank's part to the collective; the host continues."""
    capture = current().capture
    if capture is not None and capture.is_on_stream():
        return capture.meet(partial(post, members, serves_host=serves_host), call, _is_of_program())
    process, part = _begin(call, serves_host)
    state = process.state
    number = state.call_counts.get(members, 0) + 1
    state.call_counts[members] = number
    library = process.session.run.machine.spec.collectives
    if number == 1 and part.on_device and part.sip_id is not None and library is not None:
        take_buffers(process, part.sip_id, library.buffer_bytes, f"buffers of {members.name}")
    meeting = members.pending.get(number)
    if meeting is None:
        title = f"{call.signature.op} #{number} on group {members.name}"
        meeting = Collective(process.session.run, title, members.ranks, members.timeout_ps)
        members.pending[number] = meeting
    folding = process.session.run.folding
    others = () if folding is None else folding.positions(members.ranks, state.rank)
    _arrive(process, meeting, members.position(state.rank), part, members, others)
    if meeting.is_complete:
        del members.pending[number]
        process.session.order_of(members).check(meeting.title, meeting.parts())
    return CollectiveWork(process, part, call.outputs, _line_of(part, members))


@unseen
def post_pair(
    members: ProcessGroup, ends: tuple[int, int], tag: int, call: Call, serves_host: bool
) -> CollectiveWork:
    """Match one side of a send and receive with the other; ``ends`` are ranks of the world."""
    capture = current().capture
    if capture is not None and capture.is_on_stream():
        posted = partial(post_pair, members, ends, tag, serves_host=serves_host)
        return capture.meet(posted, call, _is_of_program())
    process, part = _begin(call, serves_host)
    rank = process.state.rank
    folding = process.session.run.folding
    if folding is not None:
        folding.check_pair(members.ranks, rank, ends[ends[0] == rank])
    channel = (members, *ends, tag)
    pairs = process.session.pairs.setdefault(channel, [])
    meeting = next((pair for pair in pairs if rank in pair.missing()), None)
    if meeting is None:
        number = process.session.pair_calls.get(channel, 0) + 1
        process.session.pair_calls[channel] = number
        title = f"send #{number} from rank {ends[0]} to rank {ends[1]}"
        meeting = Collective(process.session.run, title, ends, members.timeout_ps, number)
        pairs.append(meeting)
    part.called = f"{call.called.replace(' ', f' #{meeting.call} ', 1)}"
    _arrive(process, meeting, ends.index(rank), part, channel)
    if meeting.is_complete:
        pairs.remove(meeting)
    line = _line_of(part, members if call.is_batched else (members, *sorted(ends)))
    return CollectiveWork(process, part, call.outputs, line)


def _line_of(part: TorchPart, channel: Hashable) -> Hashable:
    """Return on which of NCCL's streams a call runs, which runs its calls in their order.

    A group has one on each device, and one for each pair that sends or receives singly.
    Source: ``ProcessGroupNCCL::collective`` and ``pointToPoint``.
    """
    return (part.sip_id, channel) if part.on_device or part.follows_stream else None


def _begin(call: Call, serves_host: bool) -> tuple[Process, TorchPart]:
    process = current()
    run = process.session.run
    running = run.simulation.running
    if running is not None and running.aborted:
        raise RankFailedError(
            f"{call.signature.op}: another rank failed, so rank {running.rank_id} is being "
            "aborted and the others will not join; do not call collectives while cleaning up"
        )
    sip_id: int | None = None
    for tensor in (*call.inputs, *call.outputs):
        residence = residence_of(tensor)
        if residence is not None:
            if sip_id is not None and residence.sip_id != sip_id:
                raise UsageError(
                    f"{call.signature.op}: rank {process.rank} passes tensors on "
                    f"{device_at(sip_id)} and on {device_at(residence.sip_id)}; all tensors of a "
                    "collective must be on one device"
                )
            sip_id = residence.sip_id
        elif not serves_host and _is_of_program():
            raise UsageError(
                f"{call.signature.op}: No backend type associated with device type cpu: the tensor "
                "is on the host, and the group's backend takes device tensors only; move the "
                'tensor, or make the group with backend="cpu:gloo,cuda:nccl"'
            )
    site, session = user_site(), process.session
    if site not in session.called_from:
        session.called_from.add(site)
        loop = unordered_loop(sys._getframe(1))
        if loop is not None:
            session.by_sets[loop] = None
    part = TorchPart(run, call, site, sip_id)
    if not process.is_replaying:
        process.host.owe_for("collective_ps")
        process.host.spend(call.signature.op)
    return process, part


def _is_of_program() -> bool:
    """Return whether Python code of the program called a collective.

    Tensors that C++ makes for its own calls, in operations and in DDP, have no device yet.
    """
    if EXECUTING.depth:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == _CALLS


def _arrive(
    process: Process,
    meeting: Collective,
    position: int,
    part: TorchPart,
    channel: Any,
    others: tuple[int, ...] = (),
) -> None:
    """Add the part to the collective, after its host's time, its stream and the last call."""
    run, state = process.session.run, process.state
    queue = run.queue_for(part.sip_id) if part.on_device or part.follows_stream else None
    if process.order is not None:
        _order(process.order, meeting, position, part, channel, queue)
    after = [process.host.timer(), *state.put_behind(channel, queue, part)]
    until_all_ps = meeting.until_all_call_ps()
    if run.keeper is not None:
        run.keeper.arrives(meeting, position, part, (process, channel), queue, has_host=True)
    meeting.arrive(position, part, after, others)
    if meeting.is_complete:
        parts = [part for part in meeting.parts() if isinstance(part, TorchPart)]
        if part.error is None and not _meet_on_a_device(meeting, parts):
            _compute(meeting, parts)
        for torch_part in parts:
            # One that stands for others is among them several times.
            if torch_part.call is None:
                continue
            torch_part.call = None
            if until_all_ps:
                run.simulation.timer(until_all_ps, part.label).when_done(
                    partial(_has_data, torch_part)
                )
            else:
                torch_part.has_data()


def _order(
    order: ProcessOrder,
    meeting: Collective,
    position: int,
    part: TorchPart,
    channel: Any,
    queue: Stream | None,
) -> None:
    """Set the clock of a part, and take note of what it touches.

    Raises:
        DataRaceError: It is unordered with an operation that touches the same bytes.
    """
    call = part.call
    assert call is not None
    op, root = call.signature.op, call.signature.root
    part.clock = order.in_channel(channel, meeting.title, queue)
    only_reads = (op == "broadcast" and position == root) or (op == "reduce" and position != root)
    outputs = () if only_reads else call.outputs
    computes = op in _COMPUTING
    current().touching.collective(
        meeting.title, call.inputs, outputs, part.clock, computes=computes
    )


def _has_data(part: TorchPart, _: object) -> None:
    part.has_data()


def _meet_on_a_device(meeting: Collective, parts: Sequence[TorchPart]) -> bool:
    """Return whether two ranks use tensors on one device, after refusing the call."""
    ranks: dict[int, int] = {}
    for part in parts:
        other = ranks.setdefault(part.sip_id, part.rank) if part.on_device else part.rank
        if other != part.rank:
            meeting.fail(
                UsageError(
                    f"{meeting.title}: the tensors of rank {other} and of rank {part.rank} both "
                    f"are on {device_at(part.sip_id)}, but every rank needs a device of its own; "
                    "call torch.cuda.set_device first"
                )
            )
            return True
    return False


def _compute_apart(
    meeting: Collective,
    parts: Sequence[TorchPart],
    calls: Sequence[Call],
    inputs: Any,
    outputs: Any,
) -> None:
    """Compute the outputs of all ranks; those of ranks that another one runs for go nowhere.

    Each marks its own place where that one does, and sends in its turn what that one has sent.
    """
    seen: set[Call] = set()
    tensors: list[Sequence[Tensor]] = []
    sent = current().session.sent_in_turn
    for place, (call, own) in enumerate(zip(calls, outputs, strict=True)):
        is_own, described = call not in seen, call.signature
        targets = list(own) if is_own else [tensor.clone() for tensor in own]
        if described.op == "all_reduce" and not is_own:
            targets[0] = targets[0].roll(_to_own_mark(targets[0], place, calls))
        for index, tensor in enumerate(targets):
            if described.op == "broadcast" and described.root == place:
                key = (meeting.ranks, parts[place].rank, tensor.shape, tensor.dtype)
                if is_own:
                    sent[key] = tensor.clone()
                targets[index] = tensor if is_own else sent.get(key, tensor)
        tensors.append(targets)
        seen.add(call)
    calls[0].compute(inputs, tensors)


def _to_own_mark(tensor: Tensor, place: int, calls: Sequence[Call]) -> int:
    """Return how far the mark of a rank is from where one that runs for it marks its own place.

    A mark is the only 1 of whole numbers, of which there is one for each rank.
    """
    if tensor.shape != (len(calls),) or tensor.is_floating_point():
        return 0
    marks = tensor.nonzero().flatten().tolist()
    is_mark = len(marks) == 1 and tensor[marks[0]] == 1 and calls[marks[0]] is calls[place]
    return place - marks[0] if is_mark else 0


def _compute(meeting: Collective, parts: Sequence[TorchPart]) -> None:
    calls = [part.call for part in parts if part.call is not None]
    inputs, outputs = [call.inputs for call in calls], [call.outputs for call in calls]
    has_meta = any(is_meta(tensor) for tensors in outputs for tensor in tensors)
    if has_meta and not are_known(inputs):
        for call in set(calls):
            forget(call.outputs)
        return
    compute: Compute = calls[0].compute
    if len(set(calls)) < len(calls):
        compute = partial(_compute_apart, meeting, parts, calls)
    if has_meta:
        compute = partial(follow_collective, compute)
    versioned = [item for tensors in outputs for item in tensors if not item.is_inference()]
    # What was made in inference mode is written outside of it, too: NCCL knows of no mode.
    in_mode = len(versioned) < sum(map(len, outputs))
    written = () if calls[0].compute is all_gather else tuple(versioned)
    below = torch.inference_mode() if in_mode else torch.no_grad()
    with below, _disable_current_modes(), torch._C.DisableTorchFunction():
        try:
            # NCCL writes below autograd; only a list of outputs is copied from where it gathers.
            with _unsafe_preserve_version_counter(written):
                compute(inputs, outputs)
        except KernbenchError as error:
            meeting.fail(error)
        except (RuntimeError, ValueError) as error:
            # PyTorch refuses to copy or to combine the ranks' tensors.
            wrong = not_fitting(meeting.title, parts, str(error).partition("\n")[0])
            meeting.fail(meeting.unequal(wrong))
