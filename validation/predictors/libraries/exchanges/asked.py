"""What a row says of an exchange of experts' rows, and the machine that it was measured on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernbench.accuracy.rows import Row

_SAID = re.compile(
    r"tokens/rank (?P<tokens>\d+), hidden (?P<hidden>\d+), topk (?P<topk>\d+), "
    r"experts (?P<experts>\d+)(?:; SMs (?P<pes>\d+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExchange:
    """What a rank sends."""

    tokens: int
    hidden: int
    topk: int
    experts: int
    """Experts of all ranks."""
    ranks: int
    nodes: int = 1
    pes: int | None = None
    """Multiprocessors that copy, where the source says so."""
    gathers: bool = False
    """Whether outputs of experts come back, of which the ranks of a token make one."""


def exchange_of(row: Row) -> ExpertExchange | None:
    """Return what a row's note says about an exchange; None where it says nothing."""
    said = _SAID.search(row.fields.get("note", ""))
    if said is None:
        return None
    found = {key: int(text) for key, text in said.groupdict().items() if text is not None}
    if not all(found.values()):
        return None
    return ExpertExchange(
        ranks=row.integer("n_ranks"),
        nodes=row.optional("n_nodes") or 1,
        gathers="combine" in row.op,
        **found,
    )


def met(places: int, choices: int) -> float:
    """Return how many of so many places independent choices meet, on average.

    >>> met(2, 1), met(2, 2)
    (1.0, 1.5)
    """
    return places * (1 - (1 - 1 / places) ** choices)
