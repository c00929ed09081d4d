"""Norms over the batch, by the kernels of the vendor or by PyTorch's own."""

from __future__ import annotations

from typing import NamedTuple

from torch import float32

from kernbench.library_kernels import aten, by_channel, stream
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.costs.families import blocks
from kernbench.torch_bridge.costs.families.streams import moved
from kernbench.torch_bridge.costs.library import timing_of_library
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.rules import TRAINS, plain_name, rule_of
from kernbench.torch_bridge.costs.scattered import is_planar


class _Norm(NamedTuple):
    kernel: str
    moved: tuple[int, int]
    """Bytes read and written."""
    channels: int
    """How many have a block of threads each; 0 where all are one stream."""


def _key(costs: OperationCosts, call: OperationCall) -> _Norm | blocks.Blocks | None:
    """Return the kernel of a call; None where the machine has no such kernel.

    The vendor's are for norms with weights. Of those of planes that train, float32 is known by its
    blocks; other dtypes by what was fitted to them.

    Kernels that take a plane at a time, and those that sum up first, reach less of HBM's bandwidth
    than a stream; those that do both have a block of threads for each channel.
    """
    by_blocks = blocks.key(costs, call) if plain_name(call.func) == blocks.BATCH_NORM else None
    if by_blocks is not None:
        return by_blocks
    rule, image = rule_of(call.func), call.args[0]
    trains = rule.has_second_pass(call.args)
    kernel = f"batch_norm{'_train' * trains}{'_planar' * is_planar(image)}"
    if not costs.has_kernel(kernel):
        return None
    by_plane = trains and is_planar(image)
    channels = (image.shape[1] if image.dim() > 1 else 1) if by_plane else 0
    moves = moved(rule, call)
    if channels and image.dtype == float32:
        architecture = costs.machine.spec.cuda_architecture or 0
        return blocks.Blocks((), (aten.by_channel(channels, *moves, architecture),))
    return _Norm(kernel, moves, channels)


def _kernels(
    costs: OperationCosts, name: str, norm: _Norm | blocks.Blocks, sip_id: int
) -> OperationTiming:
    if isinstance(norm, blocks.Blocks):
        return blocks.kernels(costs, name, norm, sip_id)
    assert costs.library is not None
    kernel, (read, written), channels = norm
    if channels:
        launch = by_channel(kernel, channels, read, written)
    else:
        launch = stream(kernel, read, written, warm=False)
    return timing_of_library(name, [launch], costs.machine.sip_at(sip_id), costs.library)


FAMILY: Family[_Norm | blocks.Blocks] = Family(
    matches=lambda func: plain_name(func) in TRAINS, key=_key, kernels=_kernels
)
