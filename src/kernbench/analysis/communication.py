"""Which rank sends how much to which: in collectives, and in kernels that write to peers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from kernbench.analysis.tables import is_wide, plain_table
from kernbench.op_log import Column, OpLog, RowReader, Rows, Template
from kernbench.report import format_amount

MOST_CELLS = 64
"""Rows and columns of the matrix; of more ranks, neighbours are put together."""


def communication(log: OpLog, ranks: int, most_cells: int = MOST_CELLS) -> dict[str, Any]:
    """Return the bytes that each rank sends to each other one, however many links lie between.

    Traffic that a switch adds or copies on its way is counted apart: it goes from no rank to one
    other. Of more ranks than ``most_cells``, neighbours are put together.
    """
    per_cell = -(-ranks // most_cells)
    num_cells = -(-ranks // per_cell)
    matrix = np.zeros((num_cells, num_cells), dtype=np.int64)
    by_switch = 0
    reader = RowReader()
    together: dict[tuple[Template, tuple[int, ...]], int] = {}
    for instance in log.instances:
        if instance.template.kind in ("collective", "kernel"):
            key = (instance.template, instance.ranks)
            together[key] = together.get(key, 0) + 1
    transfers: dict[Template, _Transfers] = {}
    for (template, members), times in together.items():
        sent = transfers.get(template)
        if sent is None:
            rows, texts = reader.read(template, len(members)), reader.vocabulary.texts
            of = _of_kernel if template.kind == "kernel" else _of_collective
            sent = transfers[template] = of(rows, texts)
        place = np.array(members)
        sources, targets = sent.sources, sent.targets
        if template.kind == "kernel":
            sources, targets = (np.where(end < 0, place[0], end) for end in (sources, targets))
        else:
            sources, targets = place[sources], place[targets]
        np.add.at(matrix, (sources // per_cell, targets // per_cell), sent.sizes * times)
        by_switch += sent.by_switch * times
    return {
        "ranks": ranks,
        "ranks_per_cell": per_cell,
        "bytes": matrix.tolist(),
        "total_bytes": int(matrix.sum()),
        "by_switch_bytes": by_switch,
    }


_CELL = 10
"""Columns of the console for a cell."""


def print_communication(log: OpLog, ranks: int, console: Console) -> None:
    """Print the matrix, senders as rows, with as many cells as the console has room for."""
    is_wide(console)
    values = communication(log, ranks, max((console.width - _CELL) // _CELL, 1))
    item, cells = values["ranks_per_cell"], values["bytes"]
    names = [
        str(first) if item == 1 else f"{first}-{min(first + item, ranks) - 1}"
        for first in range(0, ranks, item)
    ]
    table = plain_table("from \\ to", *names)
    for name, row in zip(names, cells, strict=True):
        table.add_row(name, *(_shown(size) for size in row))
    console.print(Text(f"\n{_shown(values['total_bytes']) or 'nothing'} sent between ranks"))
    if values["by_switch_bytes"]:
        console.print(Text(f"{_shown(values['by_switch_bytes'])} to and from switches that reduce"))
    console.print("", table, sep="\n")


def _shown(size: int) -> str:
    return format_amount(size, "B") if size else ""


class _Transfers(NamedTuple):
    """Columns, a transfer a row: positions in the group, or ranks of a kernel's peers."""

    sources: Column
    targets: Column
    """-1: the rank of the kernel itself, as in ``sources``."""
    sizes: Column
    by_switch: int
    """Bytes, of all members, that go to or come from a switch."""


def _of_collective(rows: Rows, texts: list[str]) -> _Transfers:
    sent = np.flatnonzero(np.isin(rows["kind"], _codes(texts, {"send"})))
    # Each link on the way has a row of the same step, ends and chunk.
    names = np.stack([rows[name][sent] for name in ("step", "rank", "peer", "chunk")])
    _, first = np.unique(names, axis=1, return_index=True)
    sent = sent[first]
    sources, targets, sizes = (rows[name][sent] for name in ("rank", "peer", "bytes"))
    known = (sources >= 0) & (targets >= 0)
    return _Transfers(sources[known], targets[known], sizes[known], int(sizes[~known].sum()))


def _of_kernel(rows: Rows, texts: list[str]) -> _Transfers:
    """Bytes of DMA commands; the links that they take have rows of their own."""
    far = _codes(texts, {"link"})
    mine = (rows["peer"] >= 0) & ~np.isin(rows["engine"], far)
    reads = np.flatnonzero(mine & np.isin(rows["src_space"], far))
    writes = np.flatnonzero(mine & np.isin(rows["dst_space"], far))
    own = [np.full(len(reads), -1), np.full(len(writes), -1)]
    peers = [rows["peer"][reads], rows["peer"][writes]]
    return _Transfers(
        np.concatenate([peers[0], own[1]]),
        np.concatenate([own[0], peers[1]]),
        np.concatenate([rows["bytes"][reads], rows["bytes"][writes]]),
        0,
    )


def _codes(texts: list[str], wanted: set[str]) -> list[int]:
    return [code for code, text in enumerate(texts) if text in wanted]
