"""Operations that are ATen's own kernels, by the geometry of their blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernbench.hardware import SipSpec
from kernbench.library_kernels import BlockLaunch, aten
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.base.versions import release_of_kernels
from kernbench.torch_bridge.costs.families import streams
from kernbench.torch_bridge.costs.library import timing_of_blocks
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.rules import names, plain_name
from kernbench.torch_bridge.costs.sequences import in_turn

Arguments = dict[str, Any]
Launches = Sequence["BlockLaunch"] | None
_Geometry = Callable[[Arguments, Any, "SipSpec"], Launches]


class Blocks(NamedTuple):
    """Launches, behind the copies that make operands contiguous."""

    copies: streams.Streams
    launches: tuple[BlockLaunch, ...]


def key(costs: OperationCosts, call: OperationCall) -> Blocks | None:
    """Return the launches of a call; None where no geometry is known, or on no GPU."""
    geometry = _GEOMETRIES[plain_name(call.func)]
    if costs.library is None or not _is_dense(call.args[0]):
        return None
    arguments = (argument.name for argument in call.func._schema.arguments)
    kwargs = dict(zip(arguments, call.args, strict=False)) | call.kwargs
    launches = geometry(kwargs, call.result, costs.machine.sip_at(call.sip_id))
    return None if launches is None else Blocks(tuple(streams.copies(costs, call)), tuple(launches))


def kernels(costs: OperationCosts, name: str, problem: Blocks, sip_id: int) -> OperationTiming:
    """Return the schedules of such launches."""
    timing = timing_of_blocks(name, problem.launches, costs.machine.sip_at(sip_id))
    if not problem.copies:
        return timing
    return in_turn(streams.kernels(costs, name, problem.copies, sip_id), timing)


def _is_dense(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout is torch.strided and not x.is_nested and x.numel() > 0


def _layer_norm(arguments: Arguments, result: Any, sip: SipSpec) -> Launches:
    x, cols = arguments["input"], prod(arguments["normalized_shape"])
    return aten.layer_norm(x.numel() // cols, cols, x.element_size(), sip)


def _softmax(arguments: Arguments, result: Any, sip: SipSpec) -> Launches:
    x = arguments["self"]
    outer, cols, inner = _around(x, arguments["dim"])
    if inner > 1:
        return (aten.spatial_softmax(outer, cols, inner, x.element_size(), sip),)
    is_early = release_of_kernels() < aten.IN_SHARED_MEMORY
    return (aten.softmax(outer, cols, x.element_size(), sip, is_early),)


def _softmax_backward(
    arguments: Arguments, result: Any, sip: SipSpec, of_log: bool = False
) -> Launches:
    grad = arguments["grad_output"]
    outer, cols, inner = _around(grad, arguments["dim"])
    if inner > 1:
        return None
    return aten.softmax_backward(outer, cols, grad.element_size(), sip, of_log)


def _group_norm(arguments: Arguments, result: Any, sip: SipSpec) -> Launches:
    x, batch = arguments["input"], arguments["N"]
    if not x.is_contiguous():
        return None
    return aten.group_norm(
        batch * arguments["group"], batch * arguments["C"], x.numel(), x.element_size()
    )


def _batch_norm(arguments: Arguments, result: Any, sip: SipSpec) -> Launches:
    x = arguments["input"]
    if arguments["weight"] is not None or x.dim() < 3 or not x.is_contiguous():
        # The vendor's library has those with weights.
        return None
    positions = prod(x.shape[2:])
    trains = bool(arguments["training"])
    return aten.batch_norm(x.shape[0], x.shape[1], positions, x.element_size(), trains)


def _reduction(
    arguments: Arguments, result: Any, sip: SipSpec, is_of_moments: bool = False
) -> Launches:
    problem = _reduced(arguments, result, is_of_moments)
    return None if problem is None else (aten.reduction(problem, sip),)


def _log_sum_exp(arguments: Arguments, result: Any, sip: SipSpec) -> Launches:
    problem = _reduced(arguments, result)
    return None if problem is None else aten.log_sum_exp(problem, sip)


def _reduced(
    arguments: Arguments, result: Any, is_of_moments: bool = False
) -> aten.Reduction | None:
    """Return what a call reduces; None where elements lie apart, or are complex."""
    x = arguments["self"]
    out = [item for item in (result if isinstance(result, tuple) else (result,)) if item.numel()]
    if not out or x.dtype.is_complex:
        return None
    reduced = _dims(x, arguments.get("dim"))
    order = sorted((dim for dim in range(x.dim()) if x.shape[dim] > 1), key=x.stride)
    run, expected = 1, 1
    for dim in order:
        if x.stride(dim) != expected:
            return None
        expected *= x.shape[dim]
    if not order:
        return None
    is_along = order[0] in reduced
    for dim in order:
        if (dim in reduced) is not is_along:
            break
        run *= x.shape[dim]
    inputs = prod(x.shape[dim] for dim in reduced)
    return aten.Reduction(
        outputs=x.numel() // inputs,
        inputs=inputs,
        run=run,
        is_along=is_along,
        itemsize=x.element_size(),
        out_itemsize=sum(item.element_size() for item in out),
        is_of_moments=is_of_moments,
    )


def _scan(arguments: Arguments, result: Any, sip: SipSpec) -> Launches:
    x = arguments["self"]
    outer, cols, inner = _around(x, arguments["dim"])
    if outer == inner == 1:
        # A single pass with look-back: a stream of bytes.
        return None
    out = result if isinstance(result, tuple) else (result,)
    size = sum(item.element_size() for item in out)
    return (aten.scan(outer, cols, inner, x.element_size(), size),)


_BY_MORE_THREADS = (2, 8)
"""The first release whose loss has as many threads as rows ask for (PyTorch, pull request
149779)."""
_NOT_REDUCED = 0


def _nll_loss(arguments: Arguments, result: Any, sip: SipSpec) -> Launches:
    x = arguments["self"]
    if arguments["reduction"] == _NOT_REDUCED or x.dim() != 2:
        return None
    return (aten.nll_loss(x.shape[0], release_of_kernels() < _BY_MORE_THREADS),)


def _moved_elements(arguments: Arguments, result: Any, sip: SipSpec) -> Launches:
    x = arguments["self"]
    return (aten.unlike(x.numel(), x.nbytes, x.nbytes),)


def _around(x: Tensor, dim: int) -> tuple[int, int, int]:
    """Return how many elements lie outside of a dim, in it, and inside of it."""
    dim %= max(x.dim(), 1)
    return prod(x.shape[:dim]), prod(x.shape[dim : dim + 1]), prod(x.shape[dim + 1 :])


def _dims(x: Tensor, dim: Any) -> set[int]:
    if dim is None or dim == []:
        return set(range(x.dim()))
    return {item % max(x.dim(), 1) for item in (dim if isinstance(dim, (list, tuple)) else [dim])}


_GEOMETRIES: dict[str, _Geometry] = {
    name: geometry
    for geometry, operations in (
        (_layer_norm, "native_layer_norm _fused_rms_norm"),
        (_softmax, "_softmax _log_softmax _safe_softmax"),
        (_softmax_backward, "_softmax_backward_data"),
        (partial(_softmax_backward, of_log=True), "_log_softmax_backward_data"),
        (_group_norm, "native_group_norm"),
        (_batch_norm, "native_batch_norm"),
        (_nll_loss, "nll_loss_forward"),
        (_moved_elements, "flip roll"),
        (_scan, "cumsum cumprod logcumsumexp cummax cummin"),
        (
            _reduction,
            "sum mean prod amax amin max min argmax argmin any all nansum norm linalg_vector_norm",
        ),
        (partial(_reduction, is_of_moments=True), "var var_mean std std_mean"),
        (_log_sum_exp, "logsumexp"),
    )
    for name in names(operations)
}
BATCH_NORM = "aten.native_batch_norm"
"""Which the vendor's library may have, too."""
FAMILY = Family(
    matches=lambda func: plain_name(func) in _GEOMETRIES and plain_name(func) != BATCH_NORM,
    key=key,
    kernels=kernels,
)
