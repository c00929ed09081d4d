"""Rows of exchanges of experts' rows: kernels of serving stacks, run on a machine's links."""

from __future__ import annotations

import re

from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import KernbenchError
from kernbench.links import ExpertExchange, exchange_kernel, exchange_ps

OPS = (
    "moe_dispatch",
    "moe_combine",
    "moe_alltoall_prepare",
    "moe_alltoall_dispatch",
    "moe_alltoall_combine",
    "moe_alltoall_combine_low_precision",
)
"""The operations of rows of exchanges."""
_KERNELS = {"NVLinkOneSided": "stores_", "NVLinkTwoSided": "queues_"}
_PACKED_AGAIN = {"combine_low_precision": "combine_packed"}
_ITEM_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5 + 1 / 16}
"""With one scale of a byte for every 16 elements of nvfp4."""
_OUTPUT, _PACKED = "bfloat16", "nvfp4"
_DEEPEP_BYTES = {"dispatch": 1 + 4 / 128, "combine": 2.0}
"""Bytes of an element: float8 with a scale of 128 to experts, bfloat16 back."""
_SAID = re.compile(
    r"tokens/rank (?P<tokens>\d+), hidden (?P<hidden>\d+), topk (?P<topk>\d+), "
    r"experts (?P<experts>\d+)(?:; SMs (?P<pes>\d+))?"
)


def exchanged(row: Row, machines: Machines) -> Answer:
    """Return the time of an exchange on the links that its ranks have."""
    said = _SAID.search(row.fields.get("note", ""))
    if said is None:
        return Answer(None, f"{row.op} of tokens that the source does not state")
    ints = {key: int(text) for key, text in said.groupdict().items() if text is not None}
    if not all(ints.values()):
        return Answer(None, f"{row.op} of tokens that the source does not state")
    ranks, nodes = row.integer("n_ranks"), row.optional("n_nodes") or 1
    if ranks % nodes:
        return Answer(None, f"{ranks} ranks are not {nodes} equal nodes")
    impl = row.fields.get("impl", "")
    stack = impl.partition(" ")[0]
    way = row.op.removeprefix("moe_").removeprefix("alltoall_")
    in_rack = stack in _KERNELS
    if in_rack and row.op.startswith("moe_alltoall"):
        name = _KERNELS[stack] + _PACKED_AGAIN.get(way, way)
        gathers = way.startswith("combine")
        dtype = _PACKED if name.endswith("packed") else _OUTPUT if gathers else row.dtype
        item_bytes = _ITEM_BYTES.get(dtype)
        if item_bytes is None:
            return Answer(None, f"no item size for dtype {dtype}")
    elif stack == "DeepEP" and way in _DEEPEP_BYTES:
        decodes = "low-latency" in impl
        if "pes" not in ints and not decodes:
            return Answer(None, f"the source does not say how many SMs make {row.op}")
        name = f"deepep_{'decode_' * decodes}{way}"
        item_bytes = _DEEPEP_BYTES[way]
    else:
        return Answer(None, f"no model of {row.op} by {impl}")
    try:
        machine = (
            machines.machine_of(row.device, ranks)
            if in_rack or nodes == 1
            else machines.cluster_of(row.source, row.device, nodes, ranks // nodes)
        )
        if machine is None:
            return Answer(None, "no preset of the links between this source's nodes")
        kernel = exchange_kernel(machine, name, ranks)
        hidden = ints.pop("hidden")
        exchange = ExpertExchange(
            row_bytes=hidden * item_bytes if way != "prepare" else 1.0,
            ranks=ranks,
            gathers="combine" in way,
            balanced=in_rack,
            **ints,
        )
        time_ps = exchange_ps(machine, exchange, kernel)
    except KernbenchError as error:
        return Answer(None, str(error).split(";")[0])
    return Answer(time_ps / 1e6, how=name, ran=Ran.COLLECTIVE)
