"""Why a launch is refused: the slow path of its checks, which words the errors."""

from __future__ import annotations

from functools import partial
from typing import Any

from kernbench.checks import Allowed, remedy
from kernbench.commands import Atomic, DmaRead, DmaWrite, Transfer
from kernbench.errors import BadPointerError, OutOfBoundsError, UnreachableError, UsageError
from kernbench.kernel_ir import OutOfBounds
from kernbench.runtime_api.base.rank_state import RankState
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.launches.addresses import NO_TENSOR, buffer_at
from kernbench.runtime_api.launches.kernel_engine import KernelEngine
from kernbench.runtime_api.launches.kernel_plan import KernelEntry, KernelPlan
from kernbench.runtime_api.memory.host_tensor import HostMemory, Place, is_host_tensor
from kernbench.runtime_api.memory.storage import unreachable
from kernbench.runtime_api.tensors.tensor import Tensor

_WORDS = {
    DmaRead: ("tt.load", "reads"),
    DmaWrite: ("tt.store", "writes"),
    Atomic: ("tt.atomic", "updates"),
}


def pointer_argument(
    run: Run, kernel: KernelEntry, index: int, value: Any, state: RankState, host: HostMemory
) -> Tensor | Place:
    """Return the tensor behind a pointer argument that the fast path did not accept.

    One of another library, in host memory, is taken where it is and joins ``host``.

    Raises:
        BadPointerError: It is none of this run's on this SIP; names the argument.
    """
    what = f"argument {kernel.param_names[index]} of kernel {kernel.name}"
    tensor = _wrapped(value)
    if not isinstance(tensor, Tensor):
        return _place(run, kernel.param_names[index], what, tensor, state, host)
    if tensor.context.run is not run:
        raise BadPointerError(
            f"{what}: {tensor.label} belongs to another run; copy its numpy() into this one"
        )
    if tensor.sip_id != state.sip_id:
        why_not = unreachable(tensor.buffer, state.sip_id)
        if why_not:
            raise BadPointerError(
                f"{what}: {tensor.label} lies on SIP {tensor.sip_id}, but rank {state.rank} "
                f"launches on SIP {state.sip_id}; use .to({state.sip_id}) or a collective, "
                f"or share it: {why_not}"
            )
    return tensor


def _wrapped(value: Any) -> Any:
    """Return the tensor that an argument is wrapped around, if it points where that does.

    As triton.reinterpret wraps one. What errors say of a tensor is better than of an address.
    """
    inner: Any = getattr(value, "base", None)
    is_tensor = isinstance(inner, Tensor) or is_host_tensor(inner)
    return inner if is_tensor and inner.data_ptr() == value.data_ptr() else value


def _place(run: Run, name: str, what: str, value: Any, state: RankState, host: HostMemory) -> Place:
    """Return where an argument other than a tensor of a run points: all that Triton asks for.

    Raises:
        BadPointerError: The SIP cannot reach memory there.
    """
    if not hasattr(value, "data_ptr"):
        raise BadPointerError(
            f"{what} must be a tensor of this run, but got {type(value).__name__}; "
            "make one with torch.from_numpy or torch.tensor"
        )
    if hasattr(value, "untyped_storage"):
        return host.tensor(value, name, what)
    address = int(value.data_ptr())
    lent = run.lent.find(address, state.sip_id)
    if lent is not None:
        host.join(lent)
        return Place(address, lent, name)
    try:
        buffer = buffer_at(run, address, state.sip_id)
    except BadPointerError as error:
        if is_host_tensor(value):
            return host.tensor(value, name, what)
        why = str(error) if isinstance(error, UnreachableError) else NO_TENSOR
        raise BadPointerError(
            f"{what}, a {type(value).__name__}, points to address {address:#x}, which {why}"
        ) from None
    return Place(address, buffer, name)


def check_race(
    kernel: KernelEntry, index: int, tensor: Tensor | Place, span: tuple[int, int], writes: bool
) -> None:
    """Refuse a launch that touches bytes ``span`` of a buffer while a collective uses them.

    Raises:
        UsageError: One of the two writes.
    """
    for work in tensor.buffer.in_flight:
        if work.conflicts(tensor.buffer, span, writes):
            raise UsageError(
                f"argument {kernel.param_names[index]} of kernel {kernel.name}: {tensor.label} is "
                f"{work.use}"
            )


def refuse_out_of_bounds(
    engine: KernelEngine, plan: KernelPlan, index: int, tensor: Tensor | Place, state: RankState
) -> None:
    """Refuse a launch that would leave a tensor's memory, and name the first offender.

    Raises:
        OutOfBoundsError: Unless it only reads there, which may be allowed and is a warning then.
    """
    before = tensor._address - tensor.buffer.address
    after = tensor.buffer.size_bytes - before
    bounds = engine.out_of_bounds(plan.trace, index, before, after, reads=engine.outside is None)
    if bounds is None and engine.outside is not None:
        bounds = engine.out_of_bounds(plan.trace, index, before, after)
        if bounds is not None:
            say = partial(_leaves_memory, plan, tensor, state, bounds, before, after)
            engine.outside.warn(bounds.line, say)
            return
    if bounds is None:
        raise OutOfBoundsError(
            f"kernel {plan.kernel.name} touches memory outside of {tensor.label} (rank "
            f"{state.rank}); mask the access"
        )
    text = _leaves_memory(plan, tensor, state, bounds, before, after)
    raise OutOfBoundsError(f"{text}; {_advice(plan, bounds.command)}")


def _leaves_memory(
    plan: KernelPlan,
    tensor: Tensor | Place,
    state: RankState,
    bounds: OutOfBounds,
    before: int,
    after: int,
) -> str:
    """Return in words how far a launch leaves the bytes around the start of a tensor."""
    access, verb = _WORDS[type(bounds.command)]
    offset = f"{'+' if bounds.byte_offset >= 0 else '-'}{abs(bounds.byte_offset)}"
    if before == 0 and after == tensor.nbytes:
        held = f"{tensor.label} is {after} bytes"
    else:
        # What counts is the memory: a kernel may walk from a view into the tensor around it.
        held = f"the memory of {tensor.label}, a view, is bytes {-before} to {after} from there"
    return (
        f"{access} at {bounds.line} {verb} {bounds.access_bytes} bytes at {tensor.name}{offset} "
        f"(rank {state.rank}, kernel {plan.kernel.name}, program {tuple(bounds.program)}), but "
        f"{held}"
    )


def _advice(plan: KernelPlan, command: Transfer) -> str:
    if plan.trace.overflows:
        return str(plan.trace.overflows[0])
    instead = f", {remedy(Allowed.OUT_OF_BOUNDS_READS)}" if isinstance(command, DmaRead) else ""
    return f"mask the {_WORDS[type(command)][0][3:]}{instead}"
