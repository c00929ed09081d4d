"""What several groups of programs do, put together as what one does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kernbench.commands import (
    PROGRAM,
    IndexTile,
    MaskTile,
    Math,
    MathClass,
    Predicate,
    Separable,
    SourceLine,
    Splat,
    Tile,
    axis_dim,
)
from kernbench.dtypes import bool_, float32, int32
from kernbench.replay.plans.persistent import Joining, NotAlikeError, outline

SHAPE = (4,)
LANES = np.arange(4)
BY_LANE = Separable(SHAPE, 5, {(axis_dim(0),): LANES})
BY_PROGRAM = Separable(SHAPE, 0, {(PROGRAM,): np.array([10, 20])})
FLAGS = Predicate(SHAPE, {(axis_dim(0),): LANES > 1})
JOINING = Joining([1, 2], np.array([2, 0, 1]))
"""One program and two, of which the last one comes first."""


def select(*inputs: Any) -> Math:
    return Math(Tile(9, SHAPE, int32), "arith.select", inputs, MathClass.SIMPLE, SourceLine("f", 1))


def dense(operand: Any) -> list[list[Any]]:
    if isinstance(operand, Splat):
        return [[operand.value] * 4] * 3
    values = operand.values.dense((PROGRAM, axis_dim(0)))
    result: list[list[Any]] = np.broadcast_to(values, (3, 4)).tolist()
    return result


def splat(value: Any, dtype: Any = int32) -> Splat:
    return Splat(value, SHAPE, dtype)


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (splat(7), splat(7), [[7] * 4] * 3),
        (splat(7), splat(8), [[8] * 4, [7] * 4, [8] * 4]),
        (splat(7), IndexTile(BY_LANE, int32), [[5, 6, 7, 8], [7] * 4, [5, 6, 7, 8]]),
        (IndexTile(BY_LANE, int32), splat(7), [[7] * 4, [5, 6, 7, 8], [7] * 4]),
        (splat(7), IndexTile(BY_PROGRAM, int32), [[20] * 4, [7] * 4, [10] * 4]),
        (splat(True, bool_), splat(False, bool_), [[False] * 4, [True] * 4, [False] * 4]),
        (MaskTile(FLAGS), splat(True, bool_), [[True] * 4, [False, False, True, True], [True] * 4]),
        (splat(False, bool_), MaskTile(FLAGS), [[0, 0, 1, 1], [0] * 4, [0, 0, 1, 1]]),
    ],
)
def test_operands_of_groups_are_joined_where_one_of_them_is_a_constant(
    one: Any, two: Any, expected: list[list[Any]]
) -> None:
    commands = [select(one, splat(1)), select(two, splat(1))]
    assert outline(commands[0]) == outline(commands[1])
    joined = JOINING.values(commands)
    assert dense(joined.inputs[0]) == expected
    assert joined.inputs[1] == splat(1)


def test_floats_of_the_text_stay_what_they_are() -> None:
    for value in (1.5, math.nan):
        [joined] = JOINING.values([(splat(value, float32),), (splat(value, float32),)])
        assert repr(joined.value) == repr(value)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (splat(7), Tile(1, SHAPE, int32)),
        (Tile(1, SHAPE, int32), IndexTile(BY_LANE, int32)),
        (splat(1.5, float32), splat(2.5, float32)),
        (IndexTile(BY_LANE, int32), MaskTile(FLAGS)),
        (None, splat(7)),
        ((splat(7),), (splat(7), splat(7))),
    ],
)
def test_groups_that_differ_in_more_are_not_joined(one: Any, two: Any) -> None:
    for parts in ([select(one), select(two)], [select(two), select(one)]):
        assert outline(parts[0]) != outline(parts[1])
        with pytest.raises(NotAlikeError):
            JOINING.values(parts)
