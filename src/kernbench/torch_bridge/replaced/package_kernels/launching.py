"""Kernels of libraries that no CPU can run: each computed by its definition, launched as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.modes import DIFFERENTIATING
from kernbench.torch_bridge.base.operation_timing import ChangingTiming, OperationTiming
from kernbench.torch_bridge.base.operations import Operation, describe
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.dispatch.known_values import forget
from kernbench.torch_bridge.placement.call_keys import is_meta
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.placement.residence import residence_of, settle
from kernbench.torch_bridge.processes.process import current

_OPERATIONS: dict[Any, Operation] = {}


def run_kernel(
    func: Any,
    compute: Callable[..., None],
    value: tuple[Any, ...],
    written: Sequence[Tensor],
    timing: Callable[[int], OperationTiming | None],
) -> None:
    """Run an operation that a library's kernels do, on tensors of one device.

    ``compute(*given)`` writes results into ``written``, which are among ``given``; without data it
    is not called. ``timing`` returns the schedules on a SIP, by the values that operands have at
    the time of its call: a captured graph calls it at each replay. None takes no time.
    """
    process = current()
    residence = residence_of(written[0])
    assert residence is not None
    sip_id, capture = residence.sip_id, process.capture
    if capture is not None:
        capture.take_kernel(compute, value, list(written))
    if is_meta(written[0]):
        forget(written)
    else:
        with unobserved():
            compute(*value)
    changing_timing = timing(sip_id)
    if changing_timing is None:
        return
    if capture is not None:
        first = changing_timing
        changing_timing = ChangingTiming(lambda: timing(sip_id) or first)
    operation = _OPERATIONS.get(func)
    if operation is None:
        operation = _OPERATIONS[func] = describe(func)
    process.host.meet(operation, value)
    process.host.launch(operation.name, changing_timing, sip_id)


def fused(name: str, define: Callable[..., Any], *tensors: Tensor | None) -> Any:
    """Return ``define(*tensors)`` as one kernel that streams its operands, forward and backward.

    ``define`` is of PyTorch's operations and returns a tensor or a tuple of tensors. Tensors on
    the host, and a compiler, which fuses by itself, see those.
    """
    first = next(tensor for tensor in tensors if tensor is not None)
    if torch.compiler.is_compiling() or residence_of(first) is None:
        return define(*tensors)
    return _Fused.apply(name, define, *tensors)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, define: Callable[..., Any], *tensors: Tensor | None) -> Any:
        ctx.save_for_backward(*tensors)
        ctx.name, ctx.define = name, define
        return _stream(name, define, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[2:]

        def again(*tensor: Tensor | None) -> tuple[Tensor | None, ...]:
            of_results, operands = tensor[: len(gradients)], tensor[len(gradients) :]
            return _gradients(ctx.define, operands, wanted, of_results)

        return None, None, *_stream(f"{ctx.name}_backward", again, (*gradients, *tensors))


def _gradients(
    define: Callable[..., Any],
    operands: Sequence[Tensor | None],
    wanted: Sequence[bool],
    of_results: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of operands, None where they are not wanted."""
    # A replay of a graph runs below autograd.
    with torch.enable_grad(), torch._C._ForceDispatchKeyGuard(*DIFFERENTIATING):
        leaves = [
            None if operand is None else operand.detach().requires_grad_(is_wanted)
            for operand, is_wanted in zip(operands, wanted, strict=True)
        ]
        built = define(*leaves)
    results = built if isinstance(built, tuple) else (built,)
    pairs = [
        (result, grad)
        for result, grad in zip(results, of_results, strict=True)
        if grad is not None and result.requires_grad
    ]
    asked = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    outputs, of_outputs = zip(*pairs, strict=True)
    tensor = iter(torch.autograd.grad(outputs, asked, of_outputs))
    return tuple(
        None if leaf is None or not leaf.requires_grad else next(tensor) for leaf in leaves
    )


def _stream(name: str, define: Callable[..., Any], tensors: Sequence[Tensor | None]) -> Any:
    """Compute an operation, place what it makes, and launch it as a kernel of its bytes."""
    process = current()
    residence = residence_of(next(tensor for tensor in tensors if tensor is not None))
    assert residence is not None
    with unobserved():
        stream = define(*tensors)
    results = stream if isinstance(stream, tuple) else (stream,)
    for result in results:
        if result is not None:
            settle(result, residence.device, name)
    if process.capture is not None:
        process.capture.take_whole(define, list(tensors), list(results))
    read, written = num_bytes(tensors), num_bytes(results)
    timing = process.session.costs.streamed(name, read, written, residence.sip_id)
    process.host.owe_triton(len(tensors) + len(results))
    process.host.launch(name, timing, residence.sip_id)
    return stream
