"""Parts of the rows: those that a fit may use, and those that it is scored on."""

from __future__ import annotations

import re
from hashlib import md5

from kernbench.accuracy.rows.forms import Category
from kernbench.accuracy.rows.reference import Row

_SIZE_OF_EXCHANGE = re.compile(r"tokens/rank \d+, |; plus notify.*")
"""What differs along the curve of an exchange of experts' rows, as the rows' notes say it."""

PARTS = 4
"""The default number of parts that a calibration cuts rows into."""


def part_of(row: Row, parts: int) -> int:
    """Return which of ``parts`` parts a row is in, by a hash that keeps whole shapes together.

    GEMMs go by their weights (n x k), elementwise rows by rows x cols, collectives by operation
    and ranks, whole models by model and split, programs by name and model (``Form.together``): rows
    that differ in one size only are never on both sides of a split. Exchanges of experts' rows go
    by the whole curve, which the note says: hidden size, experts and the SMs that copy.
    """
    key = "x".join(row.fields.get(name, "") for name in row.form.together)
    note = row.fields.get("note", "")
    if row.category is Category.COLLECTIVES and note.startswith("tokens/rank"):
        key = "x".join([key, row.dtype, _SIZE_OF_EXCHANGE.sub("", note)])
    return int(md5(key.encode()).hexdigest(), 16) % parts


def is_apart(row: Row) -> bool:
    """Return whether a row is held out: calibration scores it, and never fits to it."""
    return part_of(row, PARTS) == 0
