"""``torch.distributed``: process groups and collectives, with torch's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from numbers import Integral
from typing import Any

from kernbench.clock import user_site
from kernbench.errors import RankFailedError, UnknownNameError, UsageError, nearest
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.collectives.collective import Collective
from kernbench.runtime_api.collectives.work import Signature, Work
from kernbench.runtime_api.front.groups import Groups, ProcessGroup
from kernbench.runtime_api.front.symmetric_memory import SymmetricMemory
from kernbench.runtime_api.tensors.tensor import Tensor


class ReduceOp(StrEnum):
    """How ``all_reduce`` and ``reduce_scatter`` combine; also accepted as text, e.g. ``"sum"``."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "prod"
    MAX = "max"
    MIN = "min"


# "product" is torch's name, "prod" numpy's.
_REDUCE_OPS = {
    **{reduce_op.name.lower(): reduce_op.value for reduce_op in ReduceOp},
    **{reduce_op.value: reduce_op.value for reduce_op in ReduceOp},
}


class group:  # noqa: N801 - torch's name
    """``torch.distributed.group``."""

    WORLD = None


class Distributed(Groups):
    """The module ``torch.distributed`` of a run.

    Collectives block the rank until its part is done, or with ``async_op=True`` return a
    :class:`Work` at once. Tensors are contiguous and lie on the rank's SIP. All ranks of a group
    make the same calls in the same order; ``algorithm`` and ``protocol`` are kernbench's own
    arguments, which a run otherwise chooses (by the machine's vendor table or by modeled time).
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.ReduceOp = ReduceOp
        self.Work = Work
        self.group = group
        self._pairs: dict[tuple[ProcessGroup, int, int, int], list[Collective]] = {}
        self.symmetric_memory: SymmetricMemory
        self._symmetric_memory: SymmetricMemory
        """The same under torch's name."""
        self._pair_calls: dict[tuple[ProcessGroup, int, int, int], int] = {}

    def all_reduce(
        self,
        tensor: Tensor,
        op: str = ReduceOp.SUM,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Reduce a tensor over all ranks, in place; the result is bitwise equal on every rank."""
        both, how = (tensor,), (algorithm, protocol)
        asked = _signature("all_reduce", both, _numel("all_reduce", tensor), how, op)
        return self._call(asked, group, both, both, async_op)

    def all_gather_into_tensor(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Concatenate the inputs of all ranks in ``output_tensor``, in group order."""
        size = self.get_world_size(group)
        _check_numel("all_gather_into_tensor: output", output_tensor, size, input_tensor)
        own, how = (input_tensor,), (algorithm, protocol)
        asked = _signature("all_gather", own, output_tensor.numel(), how)
        return self._call(asked, group, own, (output_tensor,), async_op)

    def all_gather(
        self,
        tensor_list: Sequence[Tensor],
        tensor: Tensor,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Copy each rank's ``tensor`` into the entry of ``tensor_list`` at its position."""
        outputs = _checked_list("all_gather", tensor_list, tensor, self.get_world_size(group))
        own, how = (tensor,), (algorithm, protocol)
        asked = _signature("all_gather", own, _numel("all_gather", tensor) * len(outputs), how)
        return self._call(asked, group, own, outputs, async_op)

    def reduce_scatter_tensor(
        self,
        output: Tensor,
        input: Tensor,
        op: str = ReduceOp.SUM,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Reduce ``input`` over all ranks; each keeps the part at its position in ``output``."""
        _check_numel("reduce_scatter_tensor: input", input, self.get_world_size(group), output)
        own, how = (output,), (algorithm, protocol)
        asked = _signature("reduce_scatter", own, input.numel(), how, op)
        return self._call(asked, group, (input,), own, async_op)

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: str = ReduceOp.SUM,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Reduce the lists of all ranks; each keeps the tensor at its position in ``output``."""
        inputs = _checked_list("reduce_scatter", input_list, output, self.get_world_size(group))
        own, how = (output,), (algorithm, protocol)
        asked = _signature("reduce_scatter", own, output.numel() * len(inputs), how, op)
        return self._call(asked, group, inputs, own, async_op)

    def broadcast(
        self,
        tensor: Tensor,
        src: int,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Give the tensor of rank ``src`` (counted in the world) to all ranks of the group."""
        root = self.resolve(group).position(src)
        both, how = (tensor,), (algorithm, protocol)
        asked = _signature("broadcast", both, _numel("broadcast", tensor), how, root=root)
        return self._call(asked, group, both, both, async_op)

    def reduce(
        self,
        tensor: Tensor,
        dst: int,
        op: str = ReduceOp.SUM,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Reduce a tensor over all ranks into that of rank ``dst``; the others are unchanged."""
        root = self.resolve(group).position(dst)
        both, how = (tensor,), (algorithm, protocol)
        asked = _signature("reduce", both, _numel("reduce", tensor), how, op, root)
        return self._call(asked, group, both, both, async_op)

    def gather(
        self,
        tensor: Tensor,
        gather_list: Sequence[Tensor] | None = None,
        dst: int = 0,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Copy each rank's ``tensor`` into the list that rank ``dst`` passes, at its position."""
        root = self.resolve(group).position(dst)
        outputs = self._root_list("gather", "gather_list", gather_list, tensor, dst, group)
        own, how = (tensor,), (algorithm, protocol)
        num_elements = _numel("gather", tensor) * self.get_world_size(group)
        asked = _signature("gather", own, num_elements, how, root=root)
        return self._call(asked, group, own, outputs, async_op)

    def scatter(
        self,
        tensor: Tensor,
        scatter_list: Sequence[Tensor] | None = None,
        src: int = 0,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Give each rank the tensor at its position in the list that rank ``src`` passes."""
        root = self.resolve(group).position(src)
        inputs = self._root_list("scatter", "scatter_list", scatter_list, tensor, src, group)
        own, how = (tensor,), (algorithm, protocol)
        num_elements = _numel("scatter", tensor) * self.get_world_size(group)
        asked = _signature("scatter", own, num_elements, how, root=root)
        return self._call(asked, group, inputs, own, async_op)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Split ``input`` along its first dim, a part per rank; ``output`` gets theirs in order.

        Without split sizes the parts are equal; with them, both lists are given on every rank.
        """
        size = self.get_world_size(group)
        what = "all_to_all_single"
        num_elements = _numel(what, input)
        _numel(what, output)
        if output.dtype is not input.dtype:
            raise UsageError(
                f"{what}: {output.label} must have the dtype of {input.label}, {input.dtype}"
            )
        if (output_split_sizes is None) != (input_split_sizes is None):
            raise UsageError(f"{what}: give both output_split_sizes and input_split_sizes, or none")
        if input_split_sizes is None or output_split_sizes is None:
            if num_elements % size:
                raise UsageError(
                    f"{what}: input of {num_elements} elements cannot be divided evenly among the "
                    f"group's {size} ranks; give input_split_sizes and output_split_sizes"
                )
            _check_numel(f"{what}: output", output, 1, input)
            sent = taken = (num_elements // size,) * size
        else:
            sent = _split_counts(what, "input", input, input_split_sizes, size)
            taken = _split_counts(what, "output", output, output_split_sizes, size)
        signature = _same_signature("all_to_all", (), input.dtype, "", 0, algorithm, 0, protocol)
        return self._call(signature, group, (input,), (output,), async_op, sent, taken)

    def all_to_all(
        self,
        output_tensor_list: Sequence[Tensor],
        input_tensor_list: Sequence[Tensor],
        group: ProcessGroup | None = None,
        async_op: bool = False,
        *,
        algorithm: str = "auto",
        protocol: str = "auto",
    ) -> Work | None:
        """Give each rank the tensor at its position; the lists may hold tensors of any sizes."""
        size = self.get_world_size(group)
        for name, tensors in (("output", output_tensor_list), ("input", input_tensor_list)):
            _check_count("all_to_all", f"{name} ", tensors, size)
        sent = tuple(_numel("all_to_all", tensor) for tensor in input_tensor_list)
        taken = tuple(_numel("all_to_all", tensor) for tensor in output_tensor_list)
        dtype = input_tensor_list[0].dtype
        for tensor in (*input_tensor_list, *output_tensor_list):
            if tensor.dtype is not dtype:
                raise UsageError(
                    f"all_to_all: {tensor.label} is {tensor.dtype}, but the first input is "
                    f"{dtype}; all tensors must have one dtype"
                )
        signature = _same_signature("all_to_all", (), dtype, "", 0, algorithm, 0, protocol)
        inputs, outputs = tuple(input_tensor_list), tuple(output_tensor_list)
        return self._call(signature, group, inputs, outputs, async_op, sent, taken)

    def barrier(self, group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
        """Wait until every rank of the group has called this."""
        return self.meet("", group, async_op)

    def meet(self, called: str, group: ProcessGroup | None, async_op: bool) -> Work | None:
        """Wait as :meth:`barrier` does for ranks that meet for something ``called`` otherwise."""
        signature = _same_signature("barrier", (), None, "", 0, "auto", 0, "auto", called)
        return self._call(signature, group, (), (), async_op)

    def isend(
        self, tensor: Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0
    ) -> Work:
        """Start sending a tensor to rank ``dst``; sends and receives of a pair match in order."""
        return self._pair("send", tensor, dst, group, tag)

    def irecv(
        self,
        tensor: Tensor,
        src: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
    ) -> Work:
        """Start receiving a tensor from rank ``src``."""
        if src is None:
            raise UsageError("recv needs the rank to receive from: pass src=")
        return self._pair("recv", tensor, src, group, tag)

    def send(
        self, tensor: Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0
    ) -> None:
        """Send a tensor to rank ``dst``, and wait until it has left."""
        self.isend(tensor, dst, group, tag).wait()

    def recv(
        self,
        tensor: Tensor,
        src: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
    ) -> int:
        """Receive a tensor from rank ``src``, wait until it has arrived, and return ``src``."""
        self.irecv(tensor, src, group, tag).wait()
        assert src is not None
        return src

    def _root_list(
        self,
        what: str,
        name: str,
        tensors: Sequence[Tensor] | None,
        one: Tensor,
        root: int,
        group: ProcessGroup | None,
    ) -> tuple[Tensor, ...]:
        """Return the checked list that only the root passes; empty on the other ranks."""
        rank = self._run.rank_state.rank
        if (tensors is None) == (rank == root):
            verb = "must give" if rank == root else "must not give"
            raise UsageError(f"{what}: rank {rank} {verb} {name}; only rank {root} does")
        return (
            () if tensors is None else _checked_list(what, tensors, one, self.get_world_size(group))
        )

    def _call(
        self,
        signature: Signature,
        group: ProcessGroup | None,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        async_op: bool,
        sent: tuple[int, ...] = (),
        taken: tuple[int, ...] = (),
    ) -> Work | None:
        members = self.resolve(group)
        state = self._run.rank_state
        position = members.position(state.rank)
        work = self._issue(signature, inputs, outputs, sent, taken)
        call = state.call_counts.get(members, 0) + 1
        state.call_counts[members] = call
        meeting = members.pending.get(call)
        if meeting is None:
            title = f"{signature.name} #{call} on group {members.name}"
            meeting = members.pending[call] = Collective(
                self._run, title, members.ranks, members.timeout_ps
            )
        folding = self._run.folding
        others = () if folding is None else folding.positions(members.ranks, state.rank)
        self._arrive(meeting, position, work, members, others)
        if meeting.is_complete:
            del members.pending[call]
        if async_op:
            return work
        work.wait()
        return None

    def _pair(
        self, what: str, tensor: Tensor, peer: int, group: ProcessGroup | None, tag: int
    ) -> Work:
        members = self.resolve(group)
        rank = self._run.rank_state.rank
        members.position(rank)
        members.position(peer)
        if peer == rank:
            raise UsageError(f"{what}: rank {rank} cannot {what} to itself; use copy_()")
        if self._run.folding is not None:
            self._run.folding.check_pair(members.ranks, rank, peer)
        is_sender = what == "send"
        ends = (rank, peer) if is_sender else (peer, rank)
        key = (members, *ends, tag)
        signature = _signature("send_recv", (tensor,), _numel(what, tensor))
        tensors = (tensor,)
        work = self._issue(signature, tensors if is_sender else (), () if is_sender else tensors)
        # The oldest meeting of the pair at which this side is still missing.
        waiting = self._pairs.setdefault(key, [])
        meeting = next((collective for collective in waiting if rank in collective.missing()), None)
        if meeting is None:
            call = self._pair_calls[key] = self._pair_calls.get(key, 0) + 1
            title = f"send #{call} from rank {ends[0]} to rank {ends[1]}"
            meeting = Collective(self._run, title, ends, members.timeout_ps, call)
            waiting.append(meeting)
        work.called = f"{what} #{meeting.call} {'to' if is_sender else 'from'} rank {peer}"
        if tag:
            work.called += f" with tag {tag}"
        self._arrive(meeting, 0 if is_sender else 1, work, key)
        if meeting.is_complete:
            waiting.remove(meeting)
        return work

    def _issue(
        self,
        signature: Signature,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        sent: tuple[int, ...] = (),
        taken: tuple[int, ...] = (),
    ) -> Work:
        """Check the tensors, advance the host clock by the call, and return the rank's part."""
        run = self._run
        run.check_open(signature.op)
        running = run.simulation.running
        if running is not None and running.aborted:
            raise RankFailedError(
                f"{signature.op}: another rank has failed, so rank {running.rank_id} is being "
                "ended and no rank will answer; do not call collectives while cleaning up"
            )
        state = run.rank_state
        for tensor in (*inputs, *outputs):
            if tensor.context.run is not run:
                raise UsageError(f"{signature.op}: {tensor.label} belongs to another run")
            if tensor.sip_id != state.sip_id:
                raise UsageError(
                    f"{signature.op}: {tensor.label} lies on SIP {tensor.sip_id}, but rank "
                    f"{state.rank} is bound to SIP {state.sip_id}"
                )
            if not tensor.is_contiguous():
                raise UsageError(
                    f"{signature.op}: {tensor.label} has strides {tensor.stride()}; collectives "
                    "take contiguous tensors, use contiguous()"
                )
        site = user_site()
        if run.keeper is not None:
            run.keeper.host_launch(signature.op, state.sip_id)
        run.pass_launch_time(state, signature.op)
        return Work(run, signature, inputs, outputs, site, sent, taken)

    def _arrive(
        self,
        meeting: Collective,
        position: int,
        work: Work,
        channel: Any,
        others: tuple[int, ...] = (),
    ) -> None:
        """Bring the rank's part to the meeting, after its stream and the channel's last call."""
        state = self._run.rank_state
        queue = self._run.queue_for(state.sip_id)
        if self._run.ordering is not None:
            self._run.ordering.arrive(work, state, queue, channel)
        after = state.put_behind(channel, queue, work)
        if self._run.keeper is not None:
            self._run.keeper.arrives(meeting, position, work, channel, queue, work.touched)
        meeting.arrive(position, work, after, others)


def _signature(
    op: str,
    tensors: Sequence[Any],
    num_elements: int,
    how: tuple[str, str] = ("auto", "auto"),
    reduce_op: Any = "",
    root: int = 0,
) -> Signature:
    """Return a call as ranks compare it; ``how`` are the algorithm and the protocol."""
    algorithm, protocol = how
    if reduce_op != "":
        name = str(getattr(reduce_op, "value", reduce_op)).lower()
        if name not in _REDUCE_OPS:
            raise UnknownNameError(
                f"{op}: unknown reduce op {reduce_op!r}: {nearest(name, ReduceOp)}"
            )
        reduce_op = _REDUCE_OPS[name]
    shapes = tuple([tensor.shape for tensor in tensors])
    dtype = tensors[0].dtype if tensors else None
    return _same_signature(op, shapes, dtype, reduce_op, root, algorithm, num_elements, protocol)


# The ranks of a group ask for equal ones, call after call.
_same_signature = lru_cache(maxsize=1024)(Signature)


def _numel(what: str, tensor: Tensor) -> int:
    if not isinstance(tensor, Tensor):
        raise UsageError(
            f"{what} takes tensors, but got {type(tensor).__name__}; make one with torch.tensor"
        )
    return tensor.numel()


def _check_numel(what: str, whole: Tensor, parts: int, part: Tensor) -> None:
    _numel(what, whole)
    _numel(what, part)
    if whole.numel() != parts * part.numel() or whole.dtype is not part.dtype:
        raise UsageError(
            f"{what} must hold {parts} x {part.numel()} elements of {part.dtype}, "
            f"but {whole.label} holds {whole.numel()}"
        )


def _split_counts(
    what: str, name: str, tensor: Tensor, sizes: Sequence[int], world_size: int
) -> tuple[int, ...]:
    """Return the number of elements of each part of a tensor split along its first dim."""
    rows = tensor.shape[0] if tensor.shape else 1
    is_list = isinstance(sizes, Sequence) and all(isinstance(size, Integral) for size in sizes)
    if not is_list or len(sizes) != world_size or sum(sizes) != rows or min(sizes) < 0:
        raise UsageError(
            f"{what}: {name}_split_sizes {sizes} must be {world_size} numbers that add up to "
            f"the {rows} rows of {tensor.label}"
        )
    row = tensor.numel() // rows if rows else 0
    return tuple(size * row for size in sizes)


def _check_count(what: str, name: str, tensors: Any, world_size: int) -> None:
    if not isinstance(tensors, Sequence):
        raise UsageError(f"{what} takes a list of tensors, but got {type(tensors).__name__}")
    if len(tensors) != world_size:
        raise UsageError(
            f"{what}: the {name}list has {len(tensors)} tensors, but the group has {world_size} "
            "ranks"
        )


def _checked_list(
    what: str, tensors: Sequence[Tensor], one: Tensor, world_size: int
) -> tuple[Tensor, ...]:
    _check_count(what, "", tensors, world_size)
    for tensor in (one, *tensors):
        _numel(what, tensor)
    for tensor in tensors:
        if tensor.shape != one.shape or tensor.dtype is not one.dtype:
            raise UsageError(f"{what}: {tensor.label} must be like {one.label}")
    return tuple(tensors)
