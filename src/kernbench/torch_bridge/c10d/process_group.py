"""The process group that programs get for the backends gloo and nccl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed import ReduceOp

from kernbench.clock import user_site
from kernbench.errors import UsageError
from kernbench.runtime_api import ProcessGroup
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.c10d import data
from kernbench.torch_bridge.c10d.calls import (
    Call,
    CollectiveWork,
    WorkGroup,
    post,
    post_pair,
    signature,
)
from kernbench.torch_bridge.c10d.checks import (
    check_contiguous,
    check_count,
    check_dense,
    check_list,
    check_nccl,
    check_own,
    check_position,
    check_reduce_op,
    check_whole,
    cut,
)
from kernbench.torch_bridge.c10d.data import name_of
from kernbench.torch_bridge.c10d.peers import algorithm_of, buffer_of, see_each_other
from kernbench.torch_bridge.placement.residence import residence_of
from kernbench.torch_bridge.processes.host import to_ps
from kernbench.torch_bridge.processes.process import current

_BY_ADDRESS = frozenset({"all_to_all", "gather", "scatter"})
"""Collectives that NCCL makes of sends, which it lets have any layout (with a warning)."""


class Options:
    """Options of a process group: all are accepted, and none has an effect."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.is_high_priority_stream = kwargs.get("is_high_priority_stream", False)
        self._timeout: Any = None
        self.config = SimpleNamespace()
        self.global_ranks_in_group: list[int] = []
        self.group_name: Any = None
        self.split_from: Any = None
        self.split_color: Any = None


class SimulatedGroup(dist.ProcessGroup):
    """Executes calls of ``torch.distributed`` as collectives on the links of the machine.

    C++ asks for :meth:`getBackendName`; it must not be that of a backend of its own.
    """

    backend_name = "simulated"
    default_timeout = timedelta(minutes=30)
    device_types: Sequence[str] = ("cpu", "cuda")
    supports_splitting = False
    supports_coalescing = True
    supports_time_estimate = False
    _sends: data.Compute = staticmethod(data.send)

    def __init__(self, store: Any, rank: int, size: int, options: Any = None, *_: Any) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._store = store
        self.options = options if isinstance(options, Options) else Options()
        self._owner = current()
        if self._owner.memory is not None:
            raise UnsupportedTorchError(
                f"a process group in a worker that rank {self._owner.rank} has started: it would "
                "be a rank outside of its world; start ranks with torch.multiprocessing.spawn"
            )
        self._owner.join_as(rank)
        self._described = ""
        self._members: ProcessGroup | None = None
        self._takes_host: bool | None = None
        self._together: list[CollectiveWork] | None = None
        # C++ registers groups by name, and does not keep the Python half of this one alive.
        self._owner.kept.add(self)

    def __repr__(self) -> str:
        return f"ProcessGroup({self.group_name})"

    def getBackendName(self) -> str:  # noqa: N802 - C++ asks by this name
        return "simulated"

    def _get_backend_name(self) -> str:
        return self.backend_name

    def name(self) -> str:
        return self.backend_name

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    @property
    def _device_types(self) -> list[torch.device]:
        config = c10d._world.pg_backend_config.get(self)
        # The object is of the back end that is named first.
        kinds = [item.partition(":")[0] for item in sorted((config or "").split(",")) if item]
        return [torch.device(kind) for kind in kinds or self.device_types]

    @property
    def group_name(self) -> str:
        return str(c10d._world.pg_names.get(self, ""))

    @property
    def pg_name(self) -> str:
        return self.group_name

    @property
    def group_desc(self) -> str:
        return self._described

    def _get_backend(self, device: Any) -> SimulatedGroup:
        return self

    def get_group_store(self) -> Any:
        return self._store

    def _set_group_name(self, name: str) -> None:
        """Accept it: the name is looked up in the world."""

    def _set_group_desc(self, described: str) -> None:
        self._described = described

    def _set_sequence_number_for_group(self) -> None:
        """Accept it: calls are counted anyway."""

    def _get_sequence_number_for_group(self) -> int:
        return self._owner.state.call_counts.get(self.members(), 0)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Set how long collectives wait for their last rank, in simulated time."""
        self.options._timeout = timeout
        if self._members is not None:
            self._members.timeout_ps = to_ps(timeout)

    set_timeout = _set_default_timeout

    def eager_connect_single_device(self, device: Any) -> None:
        """Accept it: there is nothing to connect."""

    def shutdown(self) -> None:
        """Accept it: there is nothing to close."""

    abort = shutdown

    def _wait_for_pending_works(self) -> None:
        """Accept it: works that matter have been waited for."""

    def _has_hooks(self) -> bool:
        return False

    def members(self) -> ProcessGroup:
        """Return the runtime's group: one object for all of its ranks.

        Raises:
            UsageError: Another rank has made a group of this name with different ranks.
        """
        process_group = self._members
        if process_group is None:
            to_position = c10d._world.pg_group_ranks[self]
            ranks = tuple(sorted(to_position, key=to_position.__getitem__))
            session, name = self._owner.session, self.group_name
            shown = "world" if self is c10d._world.default_pg else name
            known = session.groups.setdefault(
                (self._owner.state.spawn_id, name),
                ProcessGroup(
                    shown,
                    ranks,
                    to_ps(self.options._timeout or self.default_timeout),
                    f"rank {self._owner.rank}, which uses it at {user_site()},",
                ),
            )
            if known.ranks != ranks:
                raise UsageError(
                    f"rank {self._owner.rank} has made group {name} of ranks {list(ranks)}, but "
                    f"{known.made_by} of {list(known.ranks)}; every rank must make the same groups "
                    "in the same order"
                )
            process_group = self._members = known
        return process_group

    def _post(self, call: Call) -> CollectiveWork:
        self._check_call(call)
        work = post(self.members(), call, self._serves_host())
        if self._together is not None:
            self._together.append(work)
        return work

    def _serves_host(self) -> bool:
        """Return whether the group takes host tensors: without data, pickled objects are some."""
        serves_host = self._takes_host
        if serves_host is None:
            devices = c10d._world.pg_backend_config.get(self, "cpu:").split(",")
            serves_host = any(device.startswith("cpu:") for device in devices)
            serves_host = self._takes_host = serves_host or self._owner.session.shapes is not None
        return serves_host

    def _check_call(self, call: Call) -> None:
        caller = current()
        if caller is not self._owner:
            raise UsageError(
                f"rank {caller.rank} calls {call.signature.op} on a process group object of rank "
                f"{self._owner.rank}; it was stored where all ranks share it, such as in a "
                "default argument of a module that they import"
            )
        # gloo takes its tensors of devices, which NCCL does unless asked.
        if "cuda:gloo" not in c10d._world.pg_backend_config.get(self, ""):
            asked = call.signature
            check_nccl(asked.op, asked.reduce_op, (*call.inputs, *call.outputs))

    def _start_coalescing(self, device: Any) -> None:
        self._together = []

    def _end_coalescing(self, device: Any) -> WorkGroup:
        works, self._together = self._together or [], None
        return WorkGroup(self._owner, works)

    def allreduce(self, tensors: Any, opts: Any = None) -> CollectiveWork:
        tensors = _listed(tensors)
        op = _reduce_op(opts)
        check_reduce_op("all_reduce", op, tensors)
        asked = signature("all_reduce", tensors, _numel(tensors), name_of(op))
        return self._post(Call(asked, tensors, tensors, partial(data.all_reduce, op)))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any, *rest: Any) -> CollectiveWork:
        tensors = _listed(tensors)
        root = opts.rootRank
        check_position("broadcast", "source", root, self.members())
        asked = signature("broadcast", tensors, _numel(tensors), root=root)
        inputs = tensors if self._rank == root else []
        return self._post(Call(asked, inputs, tensors, partial(data.broadcast, root)))

    def reduce(self, tensors: Any, opts: Any, *rest: Any) -> CollectiveWork:
        tensors = _listed(tensors)
        root, op = opts.rootRank, opts.reduceOp
        check_position("reduce", "destination", root, self.members())
        check_reduce_op("reduce", op, tensors)
        asked = signature("reduce", tensors, _numel(tensors), name_of(op), root)
        return self._post(Call(asked, tensors, tensors, partial(data.reduce, op, root)))

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None) -> CollectiveWork:
        if isinstance(inputs, Tensor):
            output_lists, inputs = [output_lists], [inputs]
        for value, outputs in zip(inputs, output_lists, strict=True):
            check_count("all_gather", "output", outputs, self._size)
            check_own("all_gather", "output", outputs, value, self._rank)
        outputs = [tensor for output_list in output_lists for tensor in output_list]
        even = all(
            tensor.shape == argument.shape
            for argument, output_list in zip(inputs, output_lists, strict=True)
            for tensor in output_list
        )
        asked = signature("all_gather", inputs, _numel(outputs), with_shapes=even)
        return self._post(Call(asked, inputs, outputs, data.all_gather))

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        by_input = [[output[index] for output in output_lists] for index in range(len(inputs))]
        return self.allgather(by_input, list(inputs), opts)

    def all_gather_single(self, output: Any, value: Any, opts: Any = None) -> CollectiveWork:
        return self.all_gather_single_coalesced([output], [value], opts)

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> CollectiveWork:
        for output, value in zip(outputs, inputs, strict=True):
            check_whole("all_gather_into_tensor: output", output, value, self._size)
        asked = signature("all_gather", inputs, _numel(outputs))
        return self._post(Call(asked, list(inputs), list(outputs), data.all_gather_flat))

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> CollectiveWork:
        op = _reduce_op(opts)
        check_reduce_op("reduce_scatter", op, outputs)
        for inputs, output in zip(input_lists, outputs, strict=True):
            # As in NCCL's group, parts may be unlike: each is a reduction to its rank.
            check_count("reduce_scatter", "input", inputs, self._size)
            check_own("reduce_scatter", "input", inputs, output, self._rank)
        inputs = [tensor for input_list in input_lists for tensor in input_list]
        # Timed as one of even parts, which moves as many bytes over as many links.
        even = -(-_numel(inputs) // self._size) * self._size
        asked = signature("reduce_scatter", inputs, even, name_of(op))
        return self._post(Call(asked, inputs, list(outputs), partial(data.reduce_scatter, op)))

    def reduce_scatter_single(self, output: Any, value: Any, opts: Any = None) -> CollectiveWork:
        return self.reduce_scatter_single_coalesced([output], [value], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> CollectiveWork:
        op = _reduce_op(opts)
        check_reduce_op("reduce_scatter_tensor", op, outputs)
        for output, value in zip(outputs, inputs, strict=True):
            check_whole("reduce_scatter_tensor: input", value, output, self._size)
        asked = signature("reduce_scatter", inputs, _numel(inputs), name_of(op))
        return self._post(
            Call(asked, list(inputs), list(outputs), partial(data.reduce_scatter_flat, op))
        )

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: Any, value: Any, taken: Any, sent: Any, opts: Any = None, *rest: Any
    ) -> CollectiveWork:
        inputs = cut("input", value, sent, self._size)
        return self._exchange(inputs, cut("output", output, taken, self._size))

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> CollectiveWork:
        check_count("all_to_all", "output", outputs, self._size)
        check_count("all_to_all", "input", inputs, self._size)
        return self._exchange(list(inputs), list(outputs))

    def _exchange(self, inputs: list[Tensor], outputs: list[Tensor]) -> CollectiveWork:
        asked = signature("all_to_all", inputs, 0, with_shapes=False)
        sent = tuple([tensor.numel() for tensor in inputs])
        taken = tuple([tensor.numel() for tensor in outputs])
        return self._post(Call(asked, inputs, outputs, data.all_to_all, sent, taken))

    def gather(self, output_lists: Any, inputs: Any, opts: Any, *rest: Any) -> CollectiveWork:
        root = opts.rootRank
        check_position("gather", "destination", root, self.members())
        outputs = list(output_lists[0]) if output_lists else []
        if self._rank == root:
            check_list("gather", "output", outputs, inputs[0], self._size)
        asked = signature("gather", inputs, _numel(inputs) * self._size, root=root)
        return self._post(Call(asked, list(inputs), outputs, partial(data.gather, root)))

    def scatter(self, outputs: Any, input_lists: Any, opts: Any, *rest: Any) -> CollectiveWork:
        root = opts.rootRank
        check_position("scatter", "source", root, self.members())
        inputs = list(input_lists[0]) if input_lists else []
        if self._rank == root:
            check_list("scatter", "input", inputs, outputs[0], self._size)
        asked = signature("scatter", outputs, _numel(outputs) * self._size, root=root)
        return self._post(Call(asked, inputs, list(outputs), partial(data.scatter, root)))

    def barrier(self, opts: Any = None, *rest: Any) -> CollectiveWork:
        return self._post(Call(signature("barrier", [], 0), [], [], data.nothing))

    def monitored_barrier(self, timeout: timedelta | None = None, *_: Any, **__: Any) -> None:
        self.barrier().wait(timeout or self.options._timeout)

    def send(self, tensors: Any, destination: int, tag: int = 0) -> CollectiveWork:
        return self._pair("send", list(tensors), destination, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> CollectiveWork:
        return self._pair("recv", list(tensors), source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> CollectiveWork:
        raise UnsupportedTorchError(
            "recv from any rank: the result would depend on which rank sends first, so that runs "
            "would not be repeatable; name the rank with src="
        )

    def _pair(self, side: str, tensors: list[Tensor], peer: int, tag: int) -> CollectiveWork:
        members = self.members()
        is_sender = side == "send"
        check_position(side, "destination" if is_sender else "source", peer, members)
        mine, theirs = members.ranks[self._rank], members.ranks[peer]
        ends = (mine, theirs) if is_sender else (theirs, mine)
        called = f"{side} {'to' if is_sender else 'from'} rank {theirs}"
        if tag:
            called += f" with tag {tag}"
        asked = signature("send_recv", tensors, _numel(tensors), is_flat=True)
        inputs, outputs = (tensors, []) if is_sender else ([], tensors)
        is_batched = self._together is not None
        call = Call(asked, inputs, outputs, self._sends, called=called, is_batched=is_batched)
        self._check_call(call)
        work = post_pair(members, ends, tag, call, self._serves_host())
        if self._together is not None:
            self._together.append(work)
        return work


class GlooGroup(SimulatedGroup):
    """``ProcessGroupGloo``."""

    backend_name = "gloo"

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta | None = None, **_: Any
    ) -> None:
        super().__init__(store, rank, size)
        self.options._timeout = timeout


class NcclGroup(SimulatedGroup):
    """``ProcessGroupNCCL``."""

    backend_name = "nccl"
    default_timeout = timedelta(minutes=10)
    device_types = ("cuda",)
    Options = Options
    _sends = staticmethod(data.send_memory)

    def __init__(self, store: Any, rank: int, size: int, options: Any = None, *_: Any) -> None:
        super().__init__(store, rank, size, options)
        self._shared = buffer_of(size, self._owner.session.run.machine)
        self._see_each_other: bool | None = None
        if self._shared is not None:
            # Of such groups alone: the host of others would be charged for its Python.
            self.allreduce = self._allreduce_by_peers  # type: ignore[method-assign]

    def _pair(self, side: str, tensors: list[Tensor], peer: int, tag: int) -> CollectiveWork:
        check_dense(side, tensors)
        return super()._pair(side, tensors, peer, tag)

    def _allreduce_by_peers(self, tensors: Any, opts: Any = None) -> CollectiveWork:
        tensors = _listed(tensors)
        is_sum = _reduce_op(opts) == ReduceOp.SUM
        if is_sum and self._is_by_peers():
            algorithm = algorithm_of(tensors)
            if algorithm:
                return self._reduce_by_peers(tensors[0], algorithm)
        return super().allreduce(tensors, opts)

    def _is_by_peers(self) -> bool:
        """Return whether the ranks, which have buffers, see each other's."""
        flag = self._see_each_other
        if flag is None:
            machine = self._owner.session.run.machine
            flag = self._see_each_other = see_each_other(machine, self.members().ranks)
        return flag

    def _reduce_by_peers(self, tensor: Tensor, algorithm: str) -> CollectiveWork:
        """Add up what all ranks have copied to their buffers, on the current stream."""
        assert self._shared is not None
        asked = signature("all_reduce", [tensor], tensor.numel(), name_of(ReduceOp.SUM))
        asked = replace(asked, algorithm=algorithm)
        compute = partial(data.all_reduce, ReduceOp.SUM)
        if residence_of(tensor) is None:
            # It is C++'s own, inside an operation, whose copies take no time.
            return self._post(Call(asked, [tensor], [tensor], compute))
        shared = self._shared.like(tensor)
        # Two shots leave the sum in each rank's buffer.
        reduced = tensor if algorithm == "one_shot" else shared
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            shared.copy_(tensor)
            work = self._post(Call(asked, [shared], [reduced], compute))
            work.wait()
            if reduced is shared:
                tensor.copy_(shared)
        return work

    def _post(self, call: Call) -> CollectiveWork:
        op, inputs, outputs = call.signature.op, call.inputs, call.outputs
        if op not in _BY_ADDRESS:
            # Lists of a tensor per rank are copied from or to where NCCL works.
            is_from_list = len(inputs) > len(outputs)
            is_to_list = op == "all_gather" and len(outputs) > len(inputs)
            check_contiguous(
                op, [*(() if is_from_list else inputs), *(() if is_to_list else outputs)]
            )
        return super()._post(call)

    def barrier(self, opts: Any = None, *rest: Any) -> CollectiveWork:
        asked = signature("barrier", [], 0)
        return self._post(Call(asked, [], [], data.nothing, follows_stream=True))


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _numel(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _reduce_op(opts: Any) -> Any:
    return ReduceOp.SUM if opts is None else opts.reduceOp
