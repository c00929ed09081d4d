"""Which formulas are for a row of an exchange, and on which machine."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.accuracy.rows import Answer, Machines, Row
from kernbench.errors import KernbenchError
from kernbench.hardware import Machine
from validation.predictors.libraries.exchanges import deepep, nvlink
from validation.predictors.libraries.exchanges.asked import ExpertExchange, exchange_of

COMPOSED = "nothing was run: exchanges of experts' rows are formulas fitted to their rows"
"""Why rows of exchanges have no answer."""
OPS = (
    "moe_dispatch",
    "moe_combine",
    "moe_alltoall_prepare",
    "moe_alltoall_dispatch",
    "moe_alltoall_combine",
    "moe_alltoall_combine_low_precision",
)
"""The operations of rows of exchanges."""


def exchanged(row: Row, machines: Machines) -> Answer:
    """Return no answer, with what the formulas give for an exchange."""
    impl = row.fields.get("impl", "")
    formula: Callable[[Row, ExpertExchange, Machines], Answer]
    if impl.startswith("DeepEP") and not row.op.startswith("moe_alltoall"):
        formula = _of_deepep
    elif impl.startswith(("NVLinkOneSided", "NVLinkTwoSided")):
        formula = _of_nvlink
    else:
        return Answer(None, f"no model of {row.op} by {impl}")
    exchange = exchange_of(row)
    if exchange is None:
        return Answer(None, f"{row.op} of tokens that the source does not state")
    if exchange.ranks % exchange.nodes:
        return Answer(None, f"{exchange.ranks} ranks are not {exchange.nodes} equal nodes")
    try:
        return formula(row, exchange, machines)
    except KernbenchError as error:
        return Answer(None, str(error).split(";")[0])


def _of_deepep(row: Row, exchange: ExpertExchange, machines: Machines) -> Answer:
    for_decode = "low-latency" in row.fields.get("impl", "")
    if exchange.pes is None and not for_decode:
        return Answer(None, f"the source does not say how many SMs make {row.op}")
    if exchange.nodes > 1:
        return _between(row, exchange, machines, for_decode)
    machine = machines.machine_of(row.device)
    constants = deepep.EXCHANGES.get(machine.spec.kernel_library or "")
    if constants is None:
        return _no_rows(row, machine)
    if for_decode:
        return Answer.composed(
            deepep.decode_us(exchange, constants, machine), COMPOSED, how="decode exchange"
        )
    return Answer.composed(
        deepep.prompts_us(exchange, constants), COMPOSED, how="prompts' exchange"
    )


def _between(row: Row, exchange: ExpertExchange, machines: Machines, for_decode: bool) -> Answer:
    per_node = exchange.ranks // exchange.nodes
    machine = machines.cluster_of(row.source, row.device, exchange.nodes, per_node)
    if machine is None:
        return Answer(None, "no preset of the links between this source's nodes")
    constants = deepep.RAILS.get(machine.spec.kernel_library or "")
    if constants is None:
        return _no_rows(row, machine)
    assert machine.spec.links is not None
    assert machine.spec.links.scale_out is not None
    outer = machine.spec.links.scale_out
    port = float(outer.port_gbps * outer.ports_per_node / outer.sips_per_node) * 1e3
    if for_decode:
        return Answer.composed(
            deepep.decode_between_us(exchange, constants, port), COMPOSED, how="decode, rails"
        )
    return Answer.composed(
        deepep.prompts_between_us(exchange, constants, port), COMPOSED, how="prompts, rails"
    )


def _of_nvlink(row: Row, exchange: ExpertExchange, machines: Machines) -> Answer:
    machine = machines.machine_of(row.device, exchange.ranks)
    library = machine.spec.kernel_library or ""
    queues, stores = nvlink.QUEUES.get(library), nvlink.STORES.get(library)
    if queues is None or stores is None or machine.spec.links is None:
        return _no_rows(row, machine)
    if exchange.ranks > machine.sips_per_node:
        return Answer(
            None, f"{exchange.ranks} ranks are more than a domain of {machine.sips_per_node} SIPs"
        )
    if row.op == "moe_alltoall_prepare":
        return Answer.composed(nvlink.prepare_us(exchange, queues), COMPOSED, how="prepare")
    dtype = nvlink.OUTPUT if exchange.gathers else row.dtype
    if not nvlink.knows(dtype):
        return Answer(None, f"no item size for dtype {dtype}")
    gbps = float(machine.spec.links.bandwidth_gbps)
    if row.fields.get("impl", "").startswith("NVLinkOneSided"):
        return Answer.composed(
            nvlink.stored_us(exchange, stores, dtype, gbps), COMPOSED, how="stores"
        )
    packs = row.op.endswith("_low_precision")
    return Answer.composed(
        nvlink.queued_us(exchange, queues, dtype, gbps, packs), COMPOSED, how="queues"
    )


def _no_rows(row: Row, machine: Machine) -> Answer:
    return Answer(None, f"no rows of {row.op} on the architecture of {machine.name}")
