"""Columns of numbers as text that a browser unpacks: variable-length integers, compressed."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np

from kernbench.op_log import Column

_PAYLOAD_BITS = 7
_MORE = 0x80
_LEVEL = 6


class Packed(TypedDict):
    """Columns of equal length; ``assets/unpack.js`` reads them."""

    rows: int
    columns: list[str]
    """Columns in the order in which they stand in ``data``, as differences of neighbours."""
    data: str
    """Base64 of raw deflate of zigzag varints, little end first."""


def packed(columns: Mapping[str, Sequence[int] | Column]) -> Packed:
    """Return columns of integers below 2**53 for the page.

    >>> packed({"a": [3, 4, 2]})["rows"]
    3
    """
    arrays = [np.asarray(column, dtype=np.int64) for column in columns.values()]
    (rows,) = {len(array) for array in arrays}
    raw = b"".join(_varints(np.diff(array, prepend=0)) for array in arrays)
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = deflater.compress(raw) + deflater.flush()
    return {"rows": rows, "columns": list(columns), "data": base64.b64encode(data).decode("ascii")}


def _varints(values: Column) -> bytes:
    left = (values << 1) ^ (values >> 63)
    digits = []
    while True:
        digits.append((left & (_MORE - 1)).astype(np.uint8))
        left = left >> _PAYLOAD_BITS
        if not left.any():
            break
    table = np.stack(digits, axis=1) if len(values) else np.zeros((0, 1), dtype=np.uint8)
    # A number ends at its last digit that is not zero; all before it say that more follows.
    width = table.shape[1]
    last = width - 1 - np.argmax(table[:, ::-1] != 0, axis=1)
    last[~table.any(axis=1)] = 0
    place = np.arange(width)
    table[place < last[:, None]] |= _MORE
    column: Column = table[place <= last[:, None]]
    return column.tobytes()
