"""Oracles: numpy's own slicing and concatenation, and a fresh split for every re-sharding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import KernbenchError
from kernbench.tp.sharding import (
    FusedPart,
    ShardRange,
    ShardSpec,
    column_parallel,
    divide,
    extract,
    merge,
    plan_reshard,
    reshard,
    row_parallel,
    shard_range,
)

TP_SIZES = (1, 2, 3, 4, 6, 8, 12)


@st.composite
def parts(draw):
    """A part that splits over every size in TP_SIZES that divides 24 units, or replicates."""
    unit = draw(st.integers(1, 3))
    replicable = draw(st.booleans())
    num_units = draw(st.sampled_from((1, 2, 4, 8, 24))) if replicable else 24
    return FusedPart(unit * num_units, unit, replicable)


def splits(part, tp_size):
    return part.num_units % tp_size == 0 or (
        part.replicable and part.num_units < tp_size and tp_size % part.num_units == 0
    )


@st.composite
def specs_and_target(draw):
    fused = tuple(draw(st.lists(parts(), min_size=1, max_size=3)))
    possible = [tp for tp in TP_SIZES if all(splits(part, tp) for part in fused)]
    dims = draw(st.integers(1, 3))
    dim = draw(st.integers(0, dims - 1))
    shape = [draw(st.integers(0, 3)) for _ in range(dims)]
    shape[dim] = sum(part.size for part in fused)
    tp_size = draw(st.sampled_from(possible))
    return ShardSpec(tuple(shape), dim, tp_size, fused), draw(st.sampled_from(possible))


def counted(shape):
    return np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)


@settings(deadline=None)
@given(specs_and_target())
def test_merging_the_extracted_shards_gives_the_full_weight(case):
    spec, _ = case
    full = counted(spec.shape)
    shards = [extract(full, spec, rank) for rank in range(spec.tp_size)]
    assert all(shard.shape == spec.local_shape() for shard in shards)
    np.testing.assert_array_equal(merge(shards, spec), full)


@pytest.mark.adr("0015-D3")
@settings(deadline=None)
@given(specs_and_target())
def test_resharding_gives_the_shards_of_a_fresh_split(case):
    spec, to_tp = case
    full = counted(spec.shape)
    target = spec.with_tp_size(to_tp)
    moved = reshard([extract(full, spec, rank) for rank in range(spec.tp_size)], spec, to_tp)
    for rank, shard in enumerate(moved):
        np.testing.assert_array_equal(shard, extract(full, target, rank))
    np.testing.assert_array_equal(merge(moved, target), full)


@pytest.mark.adr("0015-D3")
@settings(deadline=None)
@given(specs_and_target())
def test_a_plan_writes_every_index_of_every_new_shard_once(case):
    spec, to_tp = case
    local = spec.with_tp_size(to_tp).local_shape()[spec.dim]
    written = np.zeros((to_tp, local), int)
    for move in plan_reshard(spec, to_tp):
        assert move.src.size == move.dst.size
        written[move.dst_rank, move.dst.slice] += 1
    np.testing.assert_array_equal(written, np.ones_like(written))


@settings(deadline=None)
@given(st.sampled_from(TP_SIZES), st.integers(1, 5), st.integers(1, 5))
def test_a_column_shard_is_a_column_slice_and_a_row_shard_a_row_slice(tp_size, columns, rows):
    full = counted((rows * tp_size, columns * tp_size))
    for rank in range(tp_size):
        by_column = extract(full, column_parallel(rows * tp_size, columns * tp_size, tp_size), rank)
        np.testing.assert_array_equal(by_column, np.split(full, tp_size, axis=1)[rank])
        by_row = extract(full, row_parallel(rows * tp_size, columns * tp_size, tp_size), rank)
        np.testing.assert_array_equal(by_row, np.split(full, tp_size, axis=0)[rank])


def test_the_parts_of_a_fused_weight_are_split_each_on_its_own():
    gate, up = counted((4, 6)), 100 + counted((4, 6))
    spec = column_parallel(4, 12, 3, (FusedPart(6), FusedPart(6)))
    shard = extract(np.concatenate([gate, up], axis=1), spec, 1)
    np.testing.assert_array_equal(shard, np.concatenate([gate[:, 2:4], up[:, 2:4]], axis=1))
    assert spec.blocks(1) == (ShardRange(2, 4), ShardRange(8, 10))


@pytest.mark.adr("0015-D1")
def test_megatrons_layout_of_query_groups_is_one_part_whose_unit_is_a_group():
    # Two groups of [q0 q1 k v], head_dim 2: a unit is a whole group, which no rank may cut.
    group = 4 * 2
    spec = column_parallel(3, 2 * group, 2, (FusedPart(2 * group, group, name="query groups"),))
    full = counted((3, 2 * group))
    np.testing.assert_array_equal(extract(full, spec, 1), full[:, group:])
    with pytest.raises(ValueError, match=r"query groups \(2\).*tensor parallel size \(4\)"):
        spec.with_tp_size(4)


@pytest.mark.adr("0015-D2")
def test_fewer_units_than_ranks_are_held_by_neighbouring_ranks():
    spec = column_parallel(1, 4, 4, (FusedPart(4, 2, replicable=True),))
    shards = [extract(counted((1, 4)), spec, rank).tolist() for rank in range(4)]
    assert shards == [[[0, 1]], [[0, 1]], [[2, 3]], [[2, 3]]]


@pytest.mark.adr("0015-D2")
def test_merging_replicas_that_differ_names_the_rank():
    spec = column_parallel(1, 4, 4, (FusedPart(4, 2, replicable=True),))
    shards = [extract(np.ones((1, 4)), spec, rank) for rank in range(4)]
    shards[3][0, 1] = 2.0
    with pytest.raises(KernbenchError, match="rank 3 holds other values"):
        merge(shards, spec)


def test_replicas_that_share_a_nan_are_the_same():
    spec = column_parallel(1, 2, 2, (FusedPart(2, 2, replicable=True),))
    full = np.array([[np.nan, 1.0]])
    np.testing.assert_array_equal(merge([full, full.copy()], spec), full)


def test_a_whole_weight_is_on_every_rank():
    spec = ShardSpec((3,), None, 2)
    full = counted((3,))
    shards = [extract(full, spec, rank) for rank in range(2)]
    np.testing.assert_array_equal(merge(shards, spec), full)
    assert [shard.tolist() for shard in reshard(shards, spec, 3)] == [[0, 1, 2]] * 3
    shards[1][0] = 9
    with pytest.raises(ValueError, match="rank 1"):
        merge(shards, spec)


def test_a_shard_is_a_copy():
    full = np.zeros((2, 2))
    for spec in (column_parallel(2, 2, 1), ShardSpec((2, 2), None, 1)):
        extract(full, spec, 0)[:] = 1
    assert not full.any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: divide(10, 4, "rows", "ranks"), r"rows \(10\).*\(4\).*8 and 12"),
        (lambda: divide(3, 4, "out_features", "world size"), r"out_features \(3\).*\(4\).*: 4"),
        (lambda: divide(0, 4, "out_features", "world size"), "out_features .*at least 1.*got 0"),
        (lambda: divide(4, 0, "out_features", "world size"), "world size .*at least 1.*got 0"),
        (lambda: shard_range(8, 4, 4), "from 0 to 3, but got 4 of 4"),
        (lambda: shard_range(8, 4, -1), "from 0 to 3, but got -1"),
        (lambda: shard_range(9, 4, 0, "hidden"), r"hidden \(9\).*\(4\)"),
        (lambda: column_parallel(8, 9, 2), r"out_features \(9\).*\(2\)"),
        (lambda: row_parallel(9, 8, 2), r"in_features \(9\).*\(2\)"),
        (lambda: FusedPart(9, 2, name="heads"), r"heads \(9\).*\(2\)"),
        (lambda: ShardSpec((4, 4), 2, 2), "dim must be from 0 to 1.*got 2"),
        (lambda: ShardSpec((4, 4), 0, 0), "at least 1, but got 0"),
        (lambda: ShardSpec((4, 4), 0, 2, (FusedPart(2),)), "2 indices in total.*4"),
        (lambda: ShardSpec((4, 4), None, 2, (FusedPart(4),)), "has no parts"),
        (lambda: column_parallel(4, 6, 4, (FusedPart(6, 2, True, "kv"),)), r"kv \(3\).*\(4\)"),
        (lambda: extract(np.zeros((4, 5)), column_parallel(4, 4, 2), 0), r"\(4, 4\).*\(4, 5\)"),
        (lambda: extract(np.zeros((4, 4)), column_parallel(4, 4, 2), 2), "got 2 of 2"),
        (lambda: merge([np.zeros((4, 2))], column_parallel(4, 4, 2)), "2 ranks.*1 shards"),
        (lambda: merge([np.zeros((4, 2)), np.zeros((4, 1))], column_parallel(4, 4, 2)), "rank 1"),
        (lambda: reshard([np.zeros((4, 4))], column_parallel(4, 4, 1), 3), r"\(4\).*\(3\)"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert isinstance(caught.value, KernbenchError)
