"""T6: a two-layer MLP, trained for a step on several world sizes, against numpy and one rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import ops, tp
from tests.tiers import examples

F32_EPSILON = float(np.finfo(np.float32).eps)


def gelu(z):
    return 0.5 * z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3)))


def gelu_slope(z, size=1e-6):
    """The slope by central differences: no formula of ours."""
    return (gelu(z + size) - gelu(z - size)) / (2 * size)


def make(seed, tokens, hidden, inner):
    random = np.random.default_rng(seed)

    def draw(*shape, scale=1.0):
        return (scale * random.standard_normal(shape)).astype(np.float32).astype(np.float64)

    return {
        "x": draw(tokens, hidden),
        "up": draw(hidden, inner, scale=hidden**-0.5),
        "up_bias": draw(inner),
        "down": draw(inner, hidden, scale=inner**-0.5),
        "down_bias": draw(hidden),
        "grad": draw(tokens, hidden),
    }


def one_rank_numpy(p):
    z = p["x"] @ p["up"] + p["up_bias"]
    h = gelu(z)
    grad_h = p["grad"] @ p["down"].T
    grad_z = grad_h * gelu_slope(z)
    return {
        "y": h @ p["down"] + p["down_bias"],
        "x": grad_z @ p["up"].T,
        "up": p["x"].T @ grad_z,
        "up_bias": grad_z.sum(axis=0),
        "down": h.T @ p["grad"],
        "down_bias": p["grad"].sum(axis=0),
    }


def on_device(on_ranks, world_size, p, tensor_size=None):
    hidden, inner = p["up"].shape

    def body(torch, _rank):
        up = tp.ColumnParallelLinear(hidden, inner, bias=True, dtype="f32", torch=torch)
        down = tp.RowParallelLinear(inner, hidden, bias=True, dtype="f32", torch=torch)
        up.load_full(p["up"], p["up_bias"])
        down.load_full(p["down"], p["down_bias"])
        x, grad = (torch.from_numpy(p[name].astype(np.float32)) for name in ("x", "grad"))
        z = up(x)
        y = down(ops.gelu(z))
        grad_x = up.backward(ops.gelu_backward(down.backward(grad), z))
        tensors = [y, grad_x, *up.gradients(), *down.gradients()]
        return [tensor.numpy().copy() for tensor in tensors]

    return on_ranks(world_size, body, tensor_size)


def assembled(results):
    """Check that replicated results have the same bits on every rank; join the split ones."""
    axes = {"y": None, "x": None, "up": 1, "up_bias": 0, "down": 0, "down_bias": None}
    full = {}
    for (name, axis), shards in zip(axes.items(), zip(*results, strict=True), strict=True):
        if axis is None:
            assert len({shard.tobytes() for shard in shards}) == 1, f"{name} differs between ranks"
        full[name] = shards[0] if axis is None else np.concatenate(shards, axis=axis)
    return full


def assert_close(result, wanted, terms):
    for name, value in wanted.items():
        # Two chained products of `terms` rounded terms each, and the slope's own error of 1e-9.
        limit = (4 * F32_EPSILON * terms + 1e-8) * max(np.abs(value).max(), 1)
        np.testing.assert_allclose(result[name], value, rtol=0, atol=limit, err_msg=name)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_every_world_size_gives_numpys_numbers_and_ranks_agree_to_the_bit(on_ranks, world_size):
    p = make(seed=world_size, tokens=6, hidden=20, inner=48)
    result = assembled(on_device(on_ranks, world_size, p))
    assert_close(result, one_rank_numpy(p), terms=48)


@examples(10)
@given(
    world_size=st.integers(1, 8),
    tokens=st.integers(1, 17),
    hidden=st.integers(1, 19),
    local_inner=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_any_shape_gives_numpys_numbers(on_ranks, world_size, tokens, hidden, local_inner, seed):
    p = make(seed, tokens, hidden, local_inner * world_size)
    result = assembled(on_device(on_ranks, world_size, p))
    assert_close(result, one_rank_numpy(p), terms=max(hidden, local_inner * world_size, tokens))


def test_many_ranks_give_what_one_rank_gives(on_ranks):
    p = make(seed=0, tokens=4, hidden=16, inner=24)
    one = assembled(on_device(on_ranks, 1, p))
    for world_size in (2, 3, 4):
        assert_close(assembled(on_device(on_ranks, world_size, p)), one, terms=24)


def test_two_copies_of_the_model_do_not_meet(on_ranks):
    p = make(seed=1, tokens=4, hidden=8, inner=12)
    results = on_device(on_ranks, 4, p, tensor_size=2)
    wanted = one_rank_numpy(p)
    for copy in (results[:2], results[2:]):
        assert_close(assembled(copy), wanted, terms=12)


def test_the_same_run_twice_gives_the_same_bits(on_ranks):
    p = make(seed=2, tokens=5, hidden=12, inner=18)
    first, second = (on_device(on_ranks, 3, p) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert [item.tobytes() for item in one] == [item.tobytes() for item in two]
