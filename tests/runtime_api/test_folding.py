"""Which rank runs for which: the oracle is a mesh of all ranks, as numpy lays it out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.runtime_api import Folding, RankAxis, RuntimeContext
from kernbench.runtime_api.base.folding import axis_of

MESHES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def strides(shape: list[int]) -> list[int]:
    return [math.prod(shape[place + 1 :]) for place in range(len(shape))]


@given(MESHES, st.data())
def test_rows_of_a_mesh_are_known_and_so_are_all_rows(
    shape: list[int], data: st.DataObject
) -> None:
    ranks = np.arange(math.prod(shape)).reshape(shape)
    along = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    # Each group has all ranks along some dimensions, and one place on the others.
    rest = [place for place in range(len(shape)) if place not in along]
    size = math.prod(shape[place] for place in along)
    groups = np.transpose(ranks, [*rest, *sorted(along)]).reshape(-1, size).tolist()
    one = data.draw(st.sampled_from(groups))
    replicas = Folding(ranks.size).replicas(tuple(one))
    assert replicas is not None
    # Those of another mesh in which the group is a row, too, may come in another order.
    assert sorted(sorted(item) for item in [one, *replicas]) == sorted(map(sorted, groups))


@given(MESHES, st.data())
def test_ranks_at_one_place_of_all_axes_have_one_that_runs(
    shape: list[int], data: st.DataObject
) -> None:
    total = math.prod(shape)
    chosen = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    axes = tuple(RankAxis(strides(shape)[place], shape[place]) for place in sorted(chosen))
    base = data.draw(st.integers(0, total - 1))
    folding = Folding(total, axes, base)
    assert len(folding.running) == math.prod(axis.size for axis in axes)
    assert base in folding.running
    for rank in range(total):
        runs = folding.representative(rank)
        assert runs in folding.running
        assert folding.representative(runs) == runs
        where, its = np.unravel_index(rank, shape), np.unravel_index(runs, shape)
        whose = np.unravel_index(base, shape)
        for place in range(len(shape)):
            assert its[place] == (where if place in chosen else whose)[place]


@given(MESHES, st.data())
def test_a_row_along_one_dimension_is_its_axis(shape: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(shape) - 1))
    ranks = np.moveaxis(np.arange(math.prod(shape)).reshape(shape), place, -1)
    row = ranks.reshape(-1, shape[place])[-1].tolist()
    axis = axis_of(tuple(row), ranks.size)
    if shape[place] == 1:
        assert axis is None
    else:
        assert axis == RankAxis(strides(shape)[place], shape[place])


def test_what_is_no_row_has_no_axis() -> None:
    assert axis_of((0, 1, 3), 8) is None
    assert axis_of((1, 2), 4) is None
    assert axis_of((0, 1, 2), 8) is None


@pytest.mark.parametrize(("machine", "is_said"), [("h100-sxm:4", True), ("ahbm:4", False)])
def test_what_one_process_pays_for_all_is_said_where_hosts_take_time(
    machine: str, is_said: bool
) -> None:
    folding = Folding(4)
    folding.begin(RuntimeContext(machine=machine, ranks=4, data=False).run)
    lines = folding.remarks()
    assert "as long as with all ranks" in lines[1]
    # Only one of the two is true.
    assert ("to the picosecond" in lines[1]) != is_said
    assert ("once per process" in lines[1]) == is_said
    folding.once_ps = 0
    assert "to the picosecond" in folding.remarks()[1]
