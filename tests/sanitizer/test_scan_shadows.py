"""What is undefined stays undefined through a scan, and only from there on."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.commands import UNKNOWN_LINE, Math, MathClass, Reduce, Tile
from kernbench.dtypes import bfloat16, float32, int8
from kernbench.sanitizer.facts.shadows import build_math, reduce_shadow


@pytest.mark.parametrize(
    ("scan", "expected"), [("forward", [0, 0, 7, 7]), ("reverse", [7, 7, 7, 0])]
)
def test_a_scan_spreads_what_is_undefined_in_its_direction(scan: str, expected: list[int]) -> None:
    x, out = Tile(0, (4,), float32), Tile(1, (4,), float32)
    command = Reduce((out,), "arith.addf", (x,), 0, UNKNOWN_LINE, None, scan)
    shadow = np.array([[0, 0, 7, 0]], np.int16)
    result = reduce_shadow(command, [shadow])
    assert result is not None
    assert result.tolist() == [expected]


def test_an_undefined_scale_spoils_the_decoded_row_that_it_scales() -> None:
    x, scale, out = Tile(0, (2, 32), int8), Tile(1, (2, 1), int8), Tile(2, (2, 32), bfloat16)
    attrs = {"elements": "e4m3", "axis": 1, "packed_axis": 1}
    command = Math(out, "tt.mx_decode", (x, scale), MathClass.CONVERT, UNKNOWN_LINE, attrs)
    shadow = np.array([[[0], [0]], [[0], [3]]], np.int16)
    values = [np.zeros((2, 2, 32), np.int8), np.zeros((2, 2, 1), np.int8)]
    result = build_math(command)([None, shadow], values)
    assert result is not None
    assert np.array_equal(result, np.broadcast_to(shadow, (2, 2, 32)))
