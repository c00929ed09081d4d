"""Operations that take or change the elements of a table that indices choose."""

from __future__ import annotations

from kernbench.torch_bridge.costs.families.streams import (
    Stream,
    Streams,
    bytes_of,
    kernels,
    without_largest,
)
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.rules import names, plain_name
from kernbench.torch_bridge.costs.scattered import selection_of
from kernbench.torch_bridge.costs.tensor_bytes import num_bytes

_SELECTIONS = names(
    "embedding gather index_select index take index_put _unsafe_index masked_select "
    "scatter scatter_add scatter_reduce index_add index_copy index_fill"
)
_FROM_TABLES = frozenset({"aten::embedding", "aten::index_select", "aten::index"})


def _key(costs: OperationCosts, call: OperationCall) -> Streams:
    over, read, written = bytes_of(call)
    selection = selection_of(call.name, call.args)
    if selection is None:
        # As many bytes as it writes, and the operands that select them.
        read = without_largest(call.arguments) + (0 if over else written)
        return (Stream(read, min(written, read)),)
    sip = costs.machine.sip_at(call.sip_id)
    if selection.assumes(sip):
        costs.selecting.add(call.name)
    loaded, stored = selection.moved(sip)
    read += loaded - num_bytes(call.args[:1])
    if not selection.changes:
        return (Stream(read, written),)
    # A form that makes its result copies the table first.
    copied = 0 if over else written
    return (Stream(read + copied, stored + copied),)


FAMILY = Family(
    matches=lambda func: plain_name(func) in _SELECTIONS,
    key=_key,
    kernels=kernels,
    cold=lambda call: (call.result,) if call.func._schema.name in _FROM_TABLES else (),
)
