"""The oracle is numpy on the arrays of all ranks at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import tp
from kernbench.errors import KernbenchError
from kernbench.tp import mappings
from tests.tiers import examples

WORLD_SIZES = (1, 2, 3, 4)
ALL_MAPPINGS = [item for item in vars(mappings).values() if isinstance(item, mappings.Mapping)]


def same(xs):
    return xs


def reduced(xs):
    return [sum(xs)] * len(xs)


def split(dim):
    return lambda xs: [np.split(x, len(xs), axis=dim)[rank] for rank, x in enumerate(xs)]


def gathered(dim):
    return lambda xs: [np.concatenate(xs, axis=dim)] * len(xs)


def reduce_scattered(dim):
    return lambda xs: np.split(sum(xs), len(xs), axis=dim)


ORACLES = {
    "copy_to_tensor_model_parallel_region": (same, reduced),
    "reduce_from_tensor_model_parallel_region": (reduced, same),
    "scatter_to_tensor_model_parallel_region": (split(-1), gathered(-1)),
    "gather_from_tensor_model_parallel_region": (gathered(-1), split(-1)),
    "all_gather_last_dim_from_tensor_parallel_region": (gathered(-1), reduce_scattered(-1)),
    "reduce_scatter_last_dim_to_tensor_parallel_region": (reduce_scattered(-1), gathered(-1)),
    "scatter_to_sequence_parallel_region": (split(0), gathered(0)),
    "gather_output_from_sequence_parallel_region": (gathered(0), split(0)),
    "gather_from_sequence_parallel_region": (gathered(0), reduce_scattered(0)),
    "reduce_scatter_to_sequence_parallel_region": (reduce_scattered(0), gathered(0)),
}

CONJUGATES = [
    (tp.copy_to_tensor_model_parallel_region, tp.reduce_from_tensor_model_parallel_region),
    (tp.scatter_to_tensor_model_parallel_region, tp.gather_from_tensor_model_parallel_region),
    (
        tp.all_gather_last_dim_from_tensor_parallel_region,
        tp.reduce_scatter_last_dim_to_tensor_parallel_region,
    ),
    (tp.scatter_to_sequence_parallel_region, tp.gather_output_from_sequence_parallel_region),
    (tp.gather_from_sequence_parallel_region, tp.reduce_scatter_to_sequence_parallel_region),
]


def integers(shape, rank):
    """Small integers, whose sums are exact in every dtype and every order."""
    return np.random.default_rng(rank).integers(-8, 9, shape).astype(np.float32)


def results(on_ranks, step, xs, tensor_size=None):
    def body(torch, rank):
        return step(torch.from_numpy(xs[rank])).numpy().copy()

    return on_ranks(len(xs), body, tensor_size)


def test_every_mapping_has_an_oracle_and_a_conjugate():
    assert {mapping.name for mapping in ALL_MAPPINGS} == set(ORACLES)
    assert sorted(m.name for pair in CONJUGATES for m in pair) == sorted(ORACLES)


@pytest.mark.adr("0027-D3")
@pytest.mark.parametrize("mapping", ALL_MAPPINGS, ids=lambda mapping: mapping.name)
@examples(6)
@given(
    world_size=st.sampled_from(WORLD_SIZES),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    middle=st.sampled_from(((), (1,), (2,))),
)
def test_both_directions_do_what_numpy_does_to_all_ranks(
    on_ranks, mapping, world_size, rows, columns, middle
):
    shape = (rows * world_size, *middle, columns * world_size)
    xs = [integers(shape, rank) for rank in range(world_size)]
    for step, oracle in zip((mapping, mapping.backward), ORACLES[mapping.name], strict=True):
        for result, wanted in zip(results(on_ranks, step, xs), oracle(xs), strict=True):
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.adr("0027-D3")
@pytest.mark.parametrize(("one", "other"), CONJUGATES, ids=lambda mapping: mapping.name)
def test_the_backward_of_one_is_the_forward_of_the_other(on_ranks, one, other):
    xs = [integers((6, 3), rank) for rank in range(3)]
    for backward, forward in ((one.backward, other), (other.backward, one)):
        for result, wanted in zip(
            results(on_ranks, backward, xs), results(on_ranks, forward, xs), strict=True
        ):
            np.testing.assert_array_equal(result, wanted)


def test_only_the_tensor_group_takes_part(on_ranks):
    xs = [np.full((1,), 10.0**rank, np.float32) for rank in range(4)]
    result = results(on_ranks, tp.reduce_from_tensor_model_parallel_region, xs, tensor_size=2)
    assert [item.item() for item in result] == [11, 11, 1100, 1100]


@pytest.mark.parametrize("mapping", ALL_MAPPINGS, ids=lambda mapping: mapping.name)
def test_a_strided_view_is_taken_like_its_copy(on_ranks, mapping):
    xs = [integers((4, 6), rank) for rank in range(2)]

    def body(torch, rank):
        view = torch.from_numpy(np.ascontiguousarray(xs[rank].T)).T
        return mapping(view).numpy().copy()

    for result, wanted in zip(on_ranks(2, body), ORACLES[mapping.name][0](xs), strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(
    ("step", "shape", "message"),
    [
        (tp.scatter_to_tensor_model_parallel_region, (3, 5), r"dim -1.*\(5\).*size \(3\)"),
        (tp.scatter_to_sequence_parallel_region, (5, 3), r"dim 0.*\(5\).*size \(3\)"),
        (tp.reduce_scatter_to_sequence_parallel_region, (5, 3), r"dim 0.*\(5\).*size \(3\)"),
        (tp.gather_from_tensor_model_parallel_region.backward, (3, 5), r"dim -1.*\(5\).*\(3\)"),
        (tp.all_gather_last_dim_from_tensor_parallel_region.backward, (3, 5), r"\(5\).*\(3\)"),
        (tp.scatter_to_sequence_parallel_region, (), "a scalar has no dim"),
        (tp.gather_from_tensor_model_parallel_region, (), "a scalar has no dim"),
    ],
)
def test_what_does_not_split_is_refused_with_both_numbers(on_ranks, step, shape, message):
    def body(torch, _rank):
        with pytest.raises(ValueError, match=message) as caught:
            step(torch.zeros(shape, dtype="f32"))
        assert isinstance(caught.value, KernbenchError)

    on_ranks(3, body)
