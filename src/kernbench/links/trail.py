"""What happened to every transfer of a collective, and its rows for the op log."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from kernbench.commands import Engine, Space
from kernbench.links.routed_schedule import LinkPlan, Round
from kernbench.links.wires import Positions, Times
from kernbench.op_log import Column, TextColumn

_BITS = 62
"""The number of bits that numpy's integers hold."""
_NONE = np.zeros(0, dtype=np.int32)


class Trail:
    """Collects what happened to every transfer: per link that it took, and where it arrived."""

    HOP = ("step", "chunk", "rank", "peer", "size", "start_ps", "end_ps", "link", "busy_ps")
    INTAKE = ("step", "chunk", "rank", "peer", "size", "start_ps", "end_ps", "reduce")

    def __init__(self) -> None:
        self._hops: list[dict[str, Column]] = []
        self._intakes: list[dict[str, Column]] = []

    def hop(
        self,
        item: Round,
        who: Positions | slice,
        links: Positions,
        start_ps: Times,
        end_ps: Times,
        busy_ps: Times | int,
    ) -> None:
        """Record that transfers of a round took a link each."""
        wires = item.wires
        step, chunk = _places(item)
        self._hops.append(
            {
                "step": step[who],
                "chunk": chunk[who],
                "rank": wires.src[who],
                "peer": wires.dst[who],
                "size": item.sizes[who],
                "link": links,
                "start_ps": start_ps,
                "end_ps": end_ps,
                "busy_ps": np.broadcast_to(busy_ps, len(links)),
            }
        )

    def intake(self, item: Round, start_ps: Times, end_ps: Times) -> None:
        """Record that the transfers of a round were received."""
        step, chunk = _places(item)
        self._intakes.append(
            {
                "step": step,
                "chunk": chunk,
                "rank": item.wires.dst,
                "peer": item.wires.src,
                "size": item.sizes,
                "start_ps": start_ps,
                "end_ps": end_ps,
                "reduce": np.repeat([it.reduce for it in item.steps], list(map(len, item.steps))),
            }
        )

    def columns(self) -> tuple[int, dict[str, Column]]:
        """Return how many hops there are, and columns of them and of the intakes after them.

        What only one of both has is as long as that.
        """
        both = {name: [*self._hops, *self._intakes] for name in self.HOP if name in self.INTAKE}
        own = {"link": self._hops, "busy_ps": self._hops, "reduce": self._intakes}
        arrays = {
            name: np.concatenate([_NONE, *(piece[name] for piece in pieces)], dtype=_dtype(name))
            for name, pieces in {**both, **own}.items()
        }
        return len(arrays["link"]), arrays


def _places(item: Round) -> tuple[Column, Column]:
    """Return the step and the chunk of every transfer."""
    numbers = np.arange(item.first, item.first + len(item.steps))
    step = np.repeat(numbers, [len(it) for it in item.steps])
    return step, np.concatenate([it.chunk for it in item.steps]).astype(np.int64)


def _dtype(name: str) -> type[np.signedinteger[Any]]:
    return np.int64 if name.endswith("_ps") else np.int32


def build_rows(plan: LinkPlan, trail: Trail) -> dict[str, Column]:
    """Return a row per transfer and link, and one per chunk that a rank received.

    Ordered by step and start; the columns are those of the op log.
    """
    num_hops, rows = trail.columns()
    reduce = rows.pop("reduce").astype(bool)
    rows["bytes"] = plan.sizes[rows.pop("size")]
    hops = {name: rows[name] for name in ("busy_ps", "link")}
    rows["busy_ps"] = rows["end_ps"] - rows["start_ps"]
    rows["busy_ps"][:num_hops] = hops["busy_ps"]
    rows["link"] = np.full(len(rows["step"]), -1, dtype=np.int32)
    rows["link"][:num_hops] = plan.links[hops["link"]]
    rows["flops"] = np.zeros_like(rows["bytes"])
    # In a fold every slot that arrives is added later, which counts where it arrived; what a
    # switch adds on the way up is no work of a SIP.
    in_switch = np.array([step.part == "up" for step in plan.schedule.steps], dtype=np.bool_)
    adds = (reduce & ~in_switch[rows["step"][num_hops:]]) | plan.schedule.fold
    rows["flops"][num_hops:] = rows["bytes"][num_hops:] // plan.schedule.itemsize * adds
    sort = np.zeros(len(rows["step"]), dtype=np.int8)
    sort[num_hops:] = 1 + reduce
    order = _order_by(*(rows[name] for name in ("step", "start_ps", "rank", "link")))
    arrays = {name: column[order] for name, column in rows.items()}
    for name, texts in _TEXTS.items():
        arrays[name] = TextColumn.of(texts, sort[order])
    return arrays


def _order_by(*columns: Column) -> Column:
    """Return the order of rows by their first column, then by the second, ...; ties stay."""
    lows = [int(column.min(initial=0)) for column in columns]
    widths = [
        int(column.max(initial=0)) - low + 1 for column, low in zip(columns, lows, strict=True)
    ]
    if prod(widths) >> _BITS:
        return np.lexsort(columns[::-1])
    # Rows nearly are in order, which one number for all columns lets numpy profit from.
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column, low, width in zip(columns, lows, widths, strict=True):
        key = key * width + (column - low)
    return np.argsort(key, kind="stable")


_TEXTS = {
    "engine": (Engine.LINK.value, Engine.LINK.value, Engine.MATH.value),
    "kind": ("send", "receive", "reduce"),
    "src_space": (Space.HBM.value, Space.LINK.value, Space.LINK.value),
    "dst_space": (Space.LINK.value, Space.HBM.value, Space.HBM.value),
}
"""Texts of the rows of a link, of a chunk that was copied, and of one that was reduced."""
