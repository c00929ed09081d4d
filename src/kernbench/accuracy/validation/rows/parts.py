"""Parts of the rows: those that a fit may use, and those that it is scored on."""

from __future__ import annotations

from hashlib import md5

from kernbench.accuracy.validation.rows.reference import Row

PARTS = 4
"""The default number of parts that a calibration cuts rows into."""


def part_of(row: Row, parts: int) -> int:
    """Return which of ``parts`` parts a row is in, by a hash that keeps whole shapes together.

    GEMMs go by their weights (n x k), elementwise rows by rows x cols, collectives by operation
    and ranks, whole models by model and split, programs by name and model (``Form.together``): rows
    that differ in one size only are never on both sides of a split.
    """
    key = "x".join(row.fields.get(name, "") for name in row.form.together)
    return int(md5(key.encode()).hexdigest(), 16) % parts


def is_apart(row: Row) -> bool:
    """Return whether a row is held out: calibration scores it, and never fits to it."""
    return part_of(row, PARTS) == 0
