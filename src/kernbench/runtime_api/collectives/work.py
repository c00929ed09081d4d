"""One rank's part in a collective: what it asked for, and the handle it waits on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kernbench.clock import Handle, UserSite
from kernbench.errors import CollectiveTimeoutError, KernbenchError
from kernbench.memory import Buffer, Phase
from kernbench.runtime_api.collectives.collective_data import build_record
from kernbench.runtime_api.memory.storage import BufferView, Span, byte_span

if TYPE_CHECKING:
    from kernbench.collectives import Schedule
    from kernbench.runtime_api.base.run import Run
    from kernbench.runtime_api.collectives.collective import Collective
    from kernbench.runtime_api.tensors.tensor import Tensor


class ElementType(Protocol):
    """What a collective asks of an element type."""

    @property
    def name(self) -> str: ...

    @property
    def itemsize(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Signature:
    """What must be the same on every rank of a collective."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the input tensors; of the outputs for a broadcast and a receive."""
    dtype: ElementType | None
    reduce_op: str
    root: int
    """Position of the root in the group; 0 where there is none."""
    algorithm: str
    num_elements: int
    """Length of the message; 0 for an all_to_all, where each rank has its own."""
    protocol: str = "auto"
    called: str = ""
    """The program's name for it, if that is not ``op``: a barrier of another kind."""

    @property
    def name(self) -> str:
        """How errors name it."""
        return self.called or self.op

    def __str__(self) -> str:
        reduce_op = f"({self.reduce_op})" if self.reduce_op else ""
        what = ""
        if self.dtype is not None:
            shapes = set(self.shapes)
            shown = str(self.shapes[0]) if len(shapes) == 1 else str(list(self.shapes))
            shown = f"{shown} " if shapes else ""
            count = f"{len(self.shapes)} x " if len(shapes) == 1 and len(self.shapes) > 1 else ""
            what = f" of {count}{shown}{self.dtype.name}"
        root = f" from position {self.root}" if self.op in ("broadcast", "scatter") else ""
        if self.op in ("reduce", "gather"):
            root = f" to position {self.root}"
        algorithm = "" if self.algorithm == "auto" else f" by {self.algorithm}"
        protocol = "" if self.protocol == "auto" else f" in {self.protocol}"
        return f"{self.name}{reduce_op}{what}{root}{algorithm}{protocol}"


class Part(Handle):
    """One rank's part in a collective, whatever its data is; ends when the part is done."""

    def __init__(
        self,
        run: Run,
        signature: Signature,
        site: UserSite,
        sent: tuple[int, ...] = (),
        taken: tuple[int, ...] = (),
    ) -> None:
        super().__init__(run.simulation.env, signature.op)
        self._run = run
        state = run.rank_state
        self.rank = state.rank
        self.sip_id = state.sip_id
        self.signature = signature
        self.site = site
        self.sent = sent
        """Elements sent to every rank of the group in an all_to_all; else empty."""
        self.taken = taken
        """Elements received from every rank; else empty."""
        self.collective: Collective | None = None
        """Set on arrival."""
        self.called = ""
        """The rank's own name for it, where that is not the collective's title."""
        self.ready_ps = 0
        """When the rank's stream had computed the inputs."""
        self.after = 0
        """What it waited for until then, as the log numbers it; 0: the rank's own call."""
        self.line = 0
        """The number of the rank's line, for a recorder of lines; 0: not known."""
        self.num_ranks = 1
        """How many ranks of the group it is for."""

    def record(self, schedule: Schedule, parts: Sequence[Part]) -> Callable[[], None] | None:
        """Return what computes the collective's data during replay, or None."""
        return None

    def end_with(self, error: KernbenchError) -> None:
        """End the part with a copy of an error: each rank raises an exception of its own."""
        self.error = type(error)(*error.args)
        self.waited_for()
        self.end_after(0)

    def asked(self) -> str:
        """Return the rank's call in words, for an error that compares it with the others'."""
        side = self.called.partition(" ")[0]
        return str(self.signature).replace("send_recv", side) if side else str(self.signature)

    def waits_for(self) -> tuple[int, ...]:
        return () if self.collective is None else self.collective.missing()

    @property
    def name(self) -> str:
        """How errors name it, e.g. ``all_reduce #7 on group world``."""
        return self.called or (self.label if self.collective is None else self.collective.title)

    def describe(self) -> str:
        if self.collective is None:
            return self.label
        return f"{self.name}, {self.collective.progress()}"


class Work(Part):
    """The handle of an asynchronous collective, whose tensors are in use until it is waited for."""

    def __init__(
        self,
        run: Run,
        signature: Signature,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        site: UserSite,
        sent: tuple[int, ...] = (),
        taken: tuple[int, ...] = (),
    ) -> None:
        super().__init__(run, signature, site, sent, taken)
        self.inputs = tuple([BufferView(tensor) for tensor in inputs])
        in_place = inputs is outputs
        self.outputs = self.inputs if in_place else tuple(map(BufferView, outputs))
        spans: list[tuple[Buffer, Span, bool]] = [
            (tensor.buffer, byte_span(tensor), True) for tensor in outputs
        ]
        if not in_place:
            spans += [(tensor.buffer, byte_span(tensor), False) for tensor in inputs]
        self._spans = spans
        for buffer, _, _ in spans:
            if self not in buffer.in_flight:
                buffer.in_flight += (self,)
                if buffer.allocation is not None:
                    buffer.allocation.is_for(Phase.COMMUNICATION)

    def wait(self) -> bool:
        """Block the calling rank until its part of the collective is done.

        After ``init_process_group(blocking_wait=False)`` only the current stream waits.
        """
        run = self._run
        if run.rank_state.blocking_wait:
            run.wait(self)
        else:
            ended = run.current_stream().wait_handle(self)
            for buffer, _, written in self._spans:
                if written:
                    buffer.last_writer = ended
            # What comes later on the stream is behind it.
            self.waited_for()
        return True

    def is_completed(self) -> bool:
        """Return whether the rank's part is done; polling too early costs host time.

        Raises:
            CollectiveTimeoutError: A rank did not arrive within the group's timeout.
        """
        if self._run.poll(self):
            self.waited_for()
        if isinstance(self.error, CollectiveTimeoutError):
            self._run.simulation.wait(self)
        return self.done

    def is_success(self) -> bool:
        """Return whether the rank's part is done without an error."""
        return self.done and self.error is None

    def waited_for(self) -> None:
        for buffer, _, _ in self._spans:
            buffer.in_flight = tuple(work for work in buffer.in_flight if work is not self)
        self._spans = []

    def record(self, schedule: Schedule, parts: Sequence[Part]) -> Callable[[], None] | None:
        works = [part for part in parts if isinstance(part, Work)]
        record: Callable[[], None] | None = None
        if self._run.has_data:
            signature = self.signature
            record = build_record(schedule, signature, works)
            if self._run.ordering is not None:
                record = self._run.ordering.start(works, signature.op, signature.root, record)
        for work in works:
            work._touch_cache()
            # The record has what it needs; the buffers go when it has run.
            work.inputs = work.outputs = ()
        return record

    def _touch_cache(self) -> None:
        """Note what the collective reads and writes in the cache of the rank's SIP."""
        cache = self._run.devices.sip(self.sip_id).cache
        touched = self.touched
        for start, end in zip(touched[::2], touched[1::2], strict=True):
            cache.touch(start, end)

    @property
    def touched(self) -> tuple[int, ...]:
        """The first address and the one after the last of each span that it uses, in a row."""
        return tuple(
            [buffer.address + place for buffer, span, _ in reversed(self._spans) for place in span]
        )

    def conflicts(self, buffer: Buffer, span: Span, writes: bool) -> bool:
        """Return whether an access to bytes of a buffer would race with the collective."""
        return any(
            other is buffer and (writes or written) and start < span[1] and span[0] < end
            for other, (start, end), written in self._spans
        )

    @property
    def use(self) -> str:
        """What an error says about a tensor that the collective still uses."""
        assert self.collective is not None
        return (
            f"in use by {self.name} at {self.site}, {self.collective.progress()}; call wait() on "
            "its Work first"
        )
