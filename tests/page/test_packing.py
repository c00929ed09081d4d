"""Columns are unpacked as what was packed."""

from __future__ import annotations

import base64
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.page.packing import Packed, packed

LARGEST = 2**51


def unpacked(packed: Packed) -> dict[str, list[int]]:
    """What assets/unpack.js does, number by number."""
    raw = iter(zlib.decompress(base64.b64decode(packed["data"]), -zlib.MAX_WBITS))
    columns: dict[str, list[int]] = {}
    for name in packed["columns"]:
        values, last = [], 0
        for _ in range(packed["rows"]):
            value = shift = 0
            while True:
                digit = next(raw)
                value |= (digit & 127) << shift
                shift += 7
                if digit < 128:
                    break
            last += value // 2 if value % 2 == 0 else -(value + 1) // 2
            values.append(last)
        columns[name] = values
    assert next(raw, None) is None
    return columns


@given(st.lists(st.tuples(st.integers(-LARGEST, LARGEST), st.integers(0, 3))))
def test_integers_of_any_size_come_back(rows: list[tuple[int, int]]) -> None:
    columns = {"wide": [row[0] for row in rows], "narrow": [row[1] for row in rows]}
    assert unpacked(packed(columns)) == columns


def test_launches_at_equal_distances_need_hardly_any_room() -> None:
    times = np.arange(100_000) * 12_345_678
    assert len(packed({"start": times})["data"]) < 1_000
