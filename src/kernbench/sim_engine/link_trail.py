"""What happened to every transfer of a collective, and its rows for the op log."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Engine, Space
from kernbench.sim_engine.link_plan import LinkPlan, Times

Column = npt.NDArray[Any]


class Trail:
    """Collects what happened to every transfer: per link that it took, and where it arrived."""

    HOP = ("step", "chunk", "rank", "peer", "size", "link", "start_ps", "end_ps", "busy_ps")
    INTAKE = ("step", "chunk", "rank", "peer", "size", "start_ps", "end_ps", "reduce")

    def __init__(self) -> None:
        self.hop_rows: list[tuple[int, ...]] = []
        self.intake_rows: list[tuple[int, ...]] = []
        self._hops: list[tuple[Any, ...]] = []
        self._intakes: list[tuple[Any, ...]] = []

    def hop(self, *columns: Any) -> None:
        """Note one link's part in many transfers; arrays or numbers in the order of HOP."""
        self._hops.append(columns)

    def intake(self, *columns: Any) -> None:
        """Note the receivers' part in many transfers; arrays or numbers in the order of INTAKE."""
        self._intakes.append(columns)

    def hops(self) -> dict[str, Times]:
        """Return a column for each name of HOP."""
        return _columns(self.HOP, self.hop_rows, self._hops)

    def intakes(self) -> dict[str, Times]:
        """Return a column for each name of INTAKE."""
        return _columns(self.INTAKE, self.intake_rows, self._intakes)


def _columns(
    names: tuple[str, ...], rows: list[tuple[int, ...]], pieces: list[tuple[Any, ...]]
) -> dict[str, Times]:
    blocks = [np.array(np.broadcast_arrays(*piece), dtype=np.int64) for piece in pieces]
    blocks.append(np.array(rows, dtype=np.int64).reshape(-1, len(names)).T)
    return dict(zip(names, np.concatenate(blocks, axis=1), strict=True))


def build_rows(plan: LinkPlan, trail: Trail) -> dict[str, Column]:
    """Return a row per transfer and link, and one per chunk that a rank took in.

    Ordered by step and start; the columns are those of the op log.
    """
    hops, intakes = trail.hops(), trail.intakes()
    on_a_link = hops["link"] < plan.num_links
    hops = {name: column[on_a_link] for name, column in hops.items()}
    hops["link"] = plan.links[hops["link"]]
    reduce = intakes.pop("reduce").astype(bool)
    num_hops = len(hops["step"])
    rows: dict[str, Column] = {
        name: np.concatenate([hops[name], intakes[name]])
        for name in ("step", "chunk", "rank", "peer", "size", "start_ps", "end_ps")
    }
    rows["bytes"] = plan.sizes[rows.pop("size")]
    rows["busy_ps"] = rows["end_ps"] - rows["start_ps"]
    rows["busy_ps"][:num_hops] = hops["busy_ps"]
    rows["link"] = np.full(len(rows["step"]), -1)
    rows["link"][:num_hops] = hops["link"]
    rows["flops"] = np.zeros_like(rows["bytes"])
    # In a fold every slot that arrives is added later, which counts where it arrived; what a
    # switch adds on the way up is no work of a SIP.
    in_switch = np.array([step.part == "up" for step in plan.schedule.steps], dtype=np.bool_)
    adds = (reduce & ~in_switch[intakes["step"]]) | plan.schedule.fold
    rows["flops"][num_hops:] = rows["bytes"][num_hops:] // plan.schedule.itemsize * adds
    sort = np.zeros(len(rows["step"]), dtype=np.intp)
    sort[num_hops:] = 1 + reduce
    for name, texts in _TEXTS.items():
        rows[name] = np.array(texts, dtype=object)[sort]
    order = np.lexsort((rows["link"], rows["rank"], rows["start_ps"], rows["step"]))
    return {name: column[order] for name, column in rows.items()}


_TEXTS = {
    "engine": (Engine.LINK.value, Engine.LINK.value, Engine.MATH.value),
    "kind": ("send", "receive", "reduce"),
    "src_space": (Space.HBM.value, Space.LINK.value, Space.LINK.value),
    "dst_space": (Space.LINK.value, Space.HBM.value, Space.HBM.value),
}
"""Texts of the rows of a link, of a chunk that was copied, and of one that was reduced."""
