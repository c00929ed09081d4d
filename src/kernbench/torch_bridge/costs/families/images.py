"""Operations that sample images: interpolation, and sampling at positions that come with data."""

from __future__ import annotations

from math import prod

from kernbench.torch_bridge.costs.by_bytes import chain_ps
from kernbench.torch_bridge.costs.families import streams
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.rules import names, plain_name
from kernbench.torch_bridge.costs.scattered import SECTOR, is_planar

# Their threads are those of one plane, so that many planes of a small image keep few PEs busy.
_BY_POSITION = names(
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d"
)
_SAMPLED = "aten.grid_sampler_2d"
_SAMPLED_ROWS = 2
"""Rows of a plane, each a sector apart, that an element is sampled from: a window of 2 x 2."""


def _key(costs: OperationCosts, call: OperationCall) -> streams.Streams:
    (stream,), result = streams.key(costs, call), call.result
    if plain_name(call.func) == _SAMPLED:
        if is_planar(call.args[0]):
            spread = result.numel() * _SAMPLED_ROWS * SECTOR
            stream = streams.spread_out(costs, stream, result, spread)
    elif is_planar(result):
        planes = prod(result.shape[:2])
        if planes:
            sip = costs.machine.sip_at(call.sip_id)
            waits_ps = chain_ps(sip, planes, stream.elements // planes)
            stream = stream._replace(waits_ps=waits_ps)
    return (stream,)


FAMILY = Family(
    matches=lambda func: plain_name(func) in _BY_POSITION | {_SAMPLED},
    key=_key,
    kernels=streams.kernels,
)
