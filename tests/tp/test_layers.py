"""T2. Two oracles, both numpy on one rank: exact on small integers, whose products and sums every
dtype holds in any order; and within a rounding bound on random numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import ops, tp
from kernbench.dtypes import as_dtype
from kernbench.errors import KernbenchError
from kernbench.runtime_api import RuntimeContext, SpawnException
from kernbench.tp.sharding import column_parallel, extract, row_parallel
from tests.tiers import examples

WORLD_SIZES = (1, 2, 3, 4, 8)


def integers(seed, *shape):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float64)


def upload(torch, values, dtype):
    return torch.from_numpy(np.asarray(values).astype(as_dtype(dtype).numpy))


def read(tensor):
    return tensor.numpy().astype(np.float64)


def train_once(layer, x, grad):
    """Return what forward and backward give: output, input gradient, parameter gradients."""
    y = read(layer(x))
    grad_x = read(layer.backward(grad))
    return y, grad_x, *[read(gradient) for gradient in layer.gradients()]


@st.composite
def problems(draw):
    world_size = draw(st.sampled_from(WORLD_SIZES))
    return {
        "world_size": world_size,
        "tokens": draw(st.sampled_from((1, 5, 16))),
        "in_features": draw(st.sampled_from((1, 7, 24))),
        "out_features": draw(st.sampled_from((1, 5, 16))),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from(("f16", "f32", "bf16"))),
    }


def reference(x, weight, bias, grad):
    y = x @ weight + (0 if bias is None else bias)
    return y, grad @ weight.T, x.T @ grad, grad.sum(axis=0)


@pytest.mark.adr("0027-D4")
@examples(15)
@given(problem=problems(), gather_output=st.booleans())
def test_column_parallel_is_the_linear_layer_with_its_outputs_side_by_side(
    on_ranks, problem, gather_output
):
    world_size, dtype = problem["world_size"], problem["dtype"]
    tokens, inputs = problem["tokens"], problem["in_features"]
    outputs = problem["out_features"] * world_size
    x, weight, bias, grad = (
        integers(0, tokens, inputs),
        integers(1, inputs, outputs),
        integers(2, outputs) if problem["bias"] else None,
        integers(3, tokens, outputs),
    )
    wanted = reference(x, weight, bias, grad)

    def body(torch, rank):
        layer = tp.ColumnParallelLinear(
            inputs, outputs, problem["bias"], gather_output, dtype, torch=torch
        )
        layer.load_full(weight, bias)
        shard = grad if gather_output else np.split(grad, world_size, axis=1)[rank]
        return train_once(layer, upload(torch, x, dtype), upload(torch, shard, dtype))

    result = on_ranks(world_size, body)
    y, grad_x, grad_weight, *grad_bias = zip(*result, strict=True)
    full_y = y[0] if gather_output else np.concatenate(y, axis=1)
    np.testing.assert_array_equal(full_y, wanted[0])
    for item in grad_x:
        np.testing.assert_array_equal(item, wanted[1])
    np.testing.assert_array_equal(np.concatenate(grad_weight, axis=1), wanted[2])
    for entry in grad_bias:
        np.testing.assert_array_equal(np.concatenate(entry), wanted[3])
    assert len(grad_bias) == problem["bias"]


@pytest.mark.adr("0027-D5")
@examples(15)
@given(problem=problems(), input_is_parallel=st.booleans())
def test_row_parallel_is_the_linear_layer_with_its_bias_added_once(
    on_ranks, problem, input_is_parallel
):
    world_size, dtype = problem["world_size"], problem["dtype"]
    tokens, outputs = problem["tokens"], problem["out_features"]
    inputs = problem["in_features"] * world_size
    x, weight, bias, grad = (
        integers(0, tokens, inputs),
        integers(1, inputs, outputs),
        integers(2, outputs) if problem["bias"] else None,
        integers(3, tokens, outputs),
    )
    wanted = reference(x, weight, bias, grad)

    def body(torch, rank):
        layer = tp.RowParallelLinear(
            inputs, outputs, problem["bias"], input_is_parallel, dtype, torch=torch
        )
        layer.load_full(weight, bias)
        shard = np.split(x, world_size, axis=1)[rank] if input_is_parallel else x
        return train_once(layer, upload(torch, shard, dtype), upload(torch, grad, dtype))

    result = on_ranks(world_size, body)
    y, grad_x, grad_weight, *grad_bias = zip(*result, strict=True)
    for item in y:
        np.testing.assert_array_equal(item, wanted[0])
    full_grad_x = np.concatenate(grad_x, axis=1) if input_is_parallel else grad_x[0]
    np.testing.assert_array_equal(full_grad_x, wanted[1])
    np.testing.assert_array_equal(np.concatenate(grad_weight, axis=0), wanted[2])
    for entry in grad_bias:
        for one in entry:
            np.testing.assert_array_equal(one, wanted[3])
    assert len(grad_bias) == problem["bias"]


@pytest.mark.adr("0027-D6")
@examples(8)
@given(problem=problems())
def test_sequence_parallel_layers_split_the_tokens_and_give_the_same_gradients(on_ranks, problem):
    world_size, dtype = problem["world_size"], problem["dtype"]
    tokens, hidden = problem["tokens"] * world_size, problem["in_features"]
    inner = problem["out_features"] * world_size
    x, up, up_bias, grad = (
        integers(0, tokens, hidden),
        integers(1, hidden, inner),
        integers(2, inner),
        integers(3, tokens, hidden),
    )
    # A permutation-like second weight keeps all numbers small.
    down, down_bias = np.eye(inner, hidden), integers(5, hidden)
    h = x @ up + up_bias
    wanted = {
        "y": h @ down + down_bias,
        "x": grad @ down.T @ up.T,
        "up": x.T @ (grad @ down.T),
        "up_bias": (grad @ down.T).sum(axis=0),
        "down": h.T @ grad,
        "down_bias": grad.sum(axis=0),
    }

    def body(torch, rank):
        first = tp.ColumnParallelLinear(
            hidden, inner, bias=True, dtype=dtype, sequence_parallel=True, torch=torch
        )
        second = tp.RowParallelLinear(
            inner, hidden, bias=True, dtype=dtype, sequence_parallel=True, torch=torch
        )
        first.load_full(up, up_bias)
        second.load_full(down, down_bias)
        mine = np.split(x, world_size)[rank], np.split(grad, world_size)[rank]
        x_mine, grad_mine = (upload(torch, item, dtype) for item in mine)
        y = read(second(first(x_mine)))
        grad_x = read(first.backward(second.backward(grad_mine)))
        return y, grad_x, *[read(gradient) for gradient in first.gradients() + second.gradients()]

    names = ("y", "x", "up", "up_bias", "down", "down_bias")
    axes = {"y": 0, "x": 0, "up": 1, "up_bias": 0, "down": 0}
    for name, shards in zip(names, zip(*on_ranks(world_size, body), strict=True), strict=True):
        full = np.concatenate(shards, axis=axes[name]) if name in axes else shards[0]
        # bfloat16 holds integers up to 256, float16 up to 2048; beyond, half a unit is rounded.
        bound = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 0.0}[dtype]
        limit = bound * world_size * np.max(np.abs(wanted[name]), initial=0)
        np.testing.assert_allclose(full, wanted[name], rtol=0, atol=limit, err_msg=name)


def test_more_than_two_dims_are_rows(on_ranks):
    x, weight, grad = integers(0, 2, 3, 4), integers(1, 4, 6), integers(2, 2, 3, 6)

    def body(torch, rank):
        layer = tp.ColumnParallelLinear(4, 6, dtype="f32", torch=torch)
        layer.load_full(weight)
        shard = np.split(grad, 2, axis=-1)[rank]
        return train_once(layer, upload(torch, x, "f32"), upload(torch, shard, "f32"))

    y, grad_x, grad_weight = zip(*on_ranks(2, body), strict=True)
    np.testing.assert_array_equal(np.concatenate(y, axis=-1), x @ weight)
    np.testing.assert_array_equal(grad_x[1], grad @ weight.T)
    wanted = np.tensordot(x, grad, axes=((0, 1), (0, 1)))
    np.testing.assert_array_equal(np.concatenate(grad_weight, axis=1), wanted)


@pytest.mark.adr("0027-D4")
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_column_outputs_side_by_side_are_the_one_rank_matmul(on_ranks, dtype):
    """Deterministic, element by element: each output has its whole K on one rank."""
    random = np.random.default_rng(0)
    tokens, inputs, outputs = 9, 40, 24
    x, weight = random.standard_normal((tokens, inputs)), random.standard_normal((inputs, outputs))

    def body(torch, _rank):
        layer = tp.ColumnParallelLinear(inputs, outputs, dtype=dtype, torch=torch)
        layer.load_full(weight)
        return read(layer(upload(torch, x, dtype)))

    one_rank = on_ranks(1, body)[0]
    # Same products, summed in float32 in an order that may follow the shard's width, then one
    # rounding to the dtype.
    eps = float(np.finfo(as_dtype(dtype).numpy).eps)
    bound = (np.abs(x) @ np.abs(weight)).max() * inputs * 2.0**-23 + eps * np.abs(one_rank).max()
    for world_size in (2, 3, 4):
        together = np.concatenate(on_ranks(world_size, body), axis=1)
        np.testing.assert_allclose(together, one_rank, rtol=0, atol=bound)


@pytest.mark.adr("0027-D5")
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_row_outputs_are_the_partial_products_summed_around_the_ring(on_ranks, world_size):
    random = np.random.default_rng(world_size)
    tokens, inputs, outputs = 5, 8 * world_size, 12
    x, weight = random.standard_normal((tokens, inputs)), random.standard_normal((inputs, outputs))

    def body(torch, rank):
        layer = tp.RowParallelLinear(inputs, outputs, dtype="f16", torch=torch)
        layer.load_full(weight)
        mine = upload(torch, np.split(x, world_size, axis=1)[rank], "f16")
        partial = ops.matmul(mine, layer.weight)
        return partial.numpy().copy(), layer(mine).numpy().copy()

    partials, outputs_of_ranks = zip(*on_ranks(world_size, body), strict=True)
    # A ring sums each chunk in rank order from some rank on, one way round or the other, rounding
    # to float16 at every hop.
    possible = []
    for first in range(world_size):
        for way in (1, -1):
            total = partials[first]
            for hop in range(1, world_size):
                total = (total + partials[(first + way * hop) % world_size]).astype(np.float16)
            possible.append(total)
    for y in outputs_of_ranks:
        assert y.tobytes() == outputs_of_ranks[0].tobytes()
        assert np.all(np.any([y == total for total in possible], axis=0))
    if world_size > 2:
        assert not np.array_equal(possible[0], possible[1]), "the orders must be told apart"


def test_the_weight_is_the_shard_of_the_full_one(on_ranks):
    weight, bias = integers(0, 6, 6), integers(1, 6)

    def body(torch, _rank):
        column = tp.ColumnParallelLinear(6, 6, bias=True, dtype="f32", torch=torch)
        row = tp.RowParallelLinear(6, 6, bias=True, dtype="f32", torch=torch)
        fresh = read(column.weight)
        column.load_full(weight, bias)
        row.load_full(weight, bias)
        return fresh, *[read(parameter) for parameter in column.parameters() + row.parameters()]

    for rank, (fresh, column, column_bias, row, row_bias) in enumerate(on_ranks(3, body)):
        np.testing.assert_array_equal(fresh, np.zeros((6, 2)))
        np.testing.assert_array_equal(column, extract(weight, column_parallel(6, 6, 3), rank))
        np.testing.assert_array_equal(column_bias, np.split(bias, 3)[rank])
        np.testing.assert_array_equal(row, extract(weight, row_parallel(6, 6, 3), rank))
        np.testing.assert_array_equal(row_bias, bias)


def test_a_run_without_data_has_the_shapes(on_ranks):
    def body(torch, _rank):
        column = tp.ColumnParallelLinear(64, 128, bias=True, torch=torch)
        row = tp.RowParallelLinear(128, 64, bias=True, torch=torch)
        x = torch.empty((16, 64), dtype="f16")
        h = column(x)
        y = row(h)
        grad_x = column.backward(row.backward(y))
        assert column.weight_grad is not None
        assert row.weight_grad is not None
        return h.shape, y.shape, grad_x.shape, column.weight_grad.shape, row.weight_grad.shape

    for shapes in on_ranks(4, body, data=False):
        assert [tuple(shape) for shape in shapes] == [
            (16, 32), (16, 64), (16, 64), (64, 32), (32, 64)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tp.ColumnParallelLinear(4, 10), r"out_features \(10\).*\(3\)"),
        (lambda: tp.RowParallelLinear(10, 4), r"in_features \(10\).*\(3\)"),
        (lambda: tp.VocabParallelEmbedding(10, 4), r"num_embeddings \(10\).*\(3\)"),
        (lambda: tp.ColumnParallelLinear(0, 3), r"at least 1, but got \(0, 3\)"),
        (
            lambda: tp.ColumnParallelLinear(3, 3, gather_output=True, sequence_parallel=True),
            "gather_output must be False",
        ),
        (
            lambda: tp.RowParallelLinear(3, 3, input_is_parallel=False, sequence_parallel=True),
            "input_is_parallel must be True",
        ),
        (lambda: tp.ColumnParallelLinear(3, 3).load_full(np.zeros((3, 4))), r"\(3, 3\).*\(3, 4\)"),
        (
            lambda: tp.ColumnParallelLinear(3, 3).load_full(np.zeros((3, 3)), np.zeros(3)),
            "no bias, but load_full got one",
        ),
        (
            lambda: tp.RowParallelLinear(3, 3, bias=True).load_full(np.zeros((3, 3))),
            "a bias, but load_full got none",
        ),
    ],
)
def test_a_layer_that_cannot_be_is_refused_with_its_numbers(on_ranks, build, message):
    def body(_torch, _rank):
        with pytest.raises(ValueError, match=message) as caught:
            build()
        assert isinstance(caught.value, KernbenchError)

    on_ranks(3, body)


def test_an_input_of_another_width_is_refused(on_ranks):
    def body(torch, _rank):
        column, row = tp.ColumnParallelLinear(4, 6), tp.RowParallelLinear(6, 4)
        x = torch.zeros((2, 6), dtype="f16")
        with pytest.raises(ValueError, match=r"an input whose last dim is 4.*\(2, 6\)"):
            column(x)
        with pytest.raises(ValueError, match=r"an input whose last dim is 3.*\(2, 6\)"):
            row(x)
        with pytest.raises(ValueError, match=r"an output gradient whose last dim is 3.*\(2, 6\)"):
            column.backward(x)
        with pytest.raises(ValueError, match=r"an input with at least 1 token.*\(0, 4\)"):
            column(torch.empty((0, 4), dtype="f16"))

    on_ranks(2, body)


def test_backward_needs_a_forward_of_its_own(on_ranks):
    def body(torch, _rank):
        layer = tp.ColumnParallelLinear(4, 4, dtype="f16")
        with pytest.raises(KernbenchError, match="no gradients yet"):
            layer.gradients()
        y = layer(torch.zeros((2, 4), dtype="f16"))
        layer.backward(y)
        with pytest.raises(KernbenchError, match="needs a forward before it"):
            layer.backward(y)

    on_ranks(1, body)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_backward_hides_its_collectives_behind_matmuls(on_ranks, sequence_parallel):
    """With 1024 tokens each collective is shorter than the matmul that does not need it."""
    times = {}

    def body(torch, rank):
        layer = tp.ColumnParallelLinear(
            1024, 16384, dtype="f16", sequence_parallel=sequence_parallel, torch=torch
        )
        tokens = 1024 // (2 if sequence_parallel else 1)
        layer(torch.empty((tokens, 1024), dtype="f16"))
        grad = torch.empty((1024, 8192), dtype="f16")
        torch.ahbm.synchronize()
        before = torch.report()["per_rank"][rank]["comm_exposed_ns"]
        layer.backward(grad)
        torch.ahbm.synchronize()
        report = torch.report()
        times[rank] = report["per_rank"][rank]["comm_exposed_ns"] - before, report["collectives"]

    on_ranks(2, body, data=False)
    exposed_ns, collectives = times[0]
    taken_ns = sum(row["time_ns"] for row in collectives)
    assert taken_ns > 0
    assert exposed_ns < taken_ns / 4


def test_loading_without_data_takes_the_same_time_and_no_memory() -> None:
    def load_ps(full: object, data: bool) -> int:
        with RuntimeContext("ahbm", ranks=2, data=data) as torch:

            def worker(rank: int) -> None:
                torch.ahbm.set_device(rank)
                torch.distributed.init_process_group()
                tp.initialize_model_parallel(2)
                tp.ColumnParallelLinear(64, 96, bias=False).load_full(full)

            torch.multiprocessing.spawn(worker, nprocs=2)
            return torch.run.simulation.now_ps

    assert load_ps(np.ones((64, 96)), data=True) == load_ps(np.ones((64, 96)), data=False)
    with pytest.raises(SpawnException, match="UsageError"):
        load_ps(np.ones((96, 64)), data=False)
