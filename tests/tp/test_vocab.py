"""The oracles are numpy's indexing, and float64 log-softmax of the whole logits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import tp
from kernbench.errors import KernbenchError, OutOfBoundsError
from tests.tiers import examples

WORLD_SIZES = (1, 2, 3, 4)


def flat_errors(error):
    """Return the root causes in a group of groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for exception in error.exceptions for leaf in flat_errors(exception)]
    return [error]


@pytest.mark.adr("0027-D6")
@examples(8)
@given(
    world_size=st.sampled_from(WORLD_SIZES),
    local_vocab=st.integers(1, 40),
    width=st.sampled_from((1, 5, 33)),
    tokens=st.integers(1, 20),
    sequence_parallel=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_embedding_is_a_lookup_and_its_gradient_sums_the_tokens_of_each_row(
    on_ranks, world_size, local_vocab, width, tokens, sequence_parallel, seed
):
    random = np.random.default_rng(seed)
    vocab, tokens = local_vocab * world_size, tokens * world_size
    ids = random.integers(0, vocab, tokens)
    table = random.integers(-8, 9, (vocab, width)).astype(np.float32)
    grad = random.integers(-8, 9, (tokens, width)).astype(np.float32)

    def body(torch, rank):
        layer = tp.VocabParallelEmbedding(
            vocab, width, dtype="f32", sequence_parallel=sequence_parallel, torch=torch
        )
        layer.load_full(table)
        y = layer(torch.from_numpy(ids))
        mine = np.split(grad, world_size)[rank] if sequence_parallel else grad
        layer.backward(torch.from_numpy(mine))
        assert layer.weight_grad is not None
        return y.numpy().copy(), layer.weight_grad.numpy().copy()

    ys, weight_grads = zip(*on_ranks(world_size, body), strict=True)
    for y in [np.concatenate(ys)] if sequence_parallel else ys:
        np.testing.assert_array_equal(y, table[ids])
    wanted = np.zeros_like(table)
    np.add.at(wanted, ids, grad)
    np.testing.assert_array_equal(np.concatenate(weight_grads), wanted)


def test_ids_of_two_dims_give_three(on_ranks):
    ids = np.array([[3, 0, 1], [2, 2, 3]], np.int32)
    table = np.arange(8, dtype=np.float32).reshape(4, 2)

    def body(torch, _rank):
        layer = tp.VocabParallelEmbedding(4, 2, dtype="f32")
        layer.load_full(table)
        return layer(torch.from_numpy(ids)).numpy().copy()

    np.testing.assert_array_equal(on_ranks(2, body)[1], table[ids])


@pytest.mark.parametrize("bad", [-1, 8, 10_000, 1 << 40])
def test_an_id_outside_the_vocabulary_is_an_error(on_ranks, bad):
    def body(torch, _rank):
        layer = tp.VocabParallelEmbedding(8, 4, dtype="f32")
        return layer(torch.from_numpy(np.array([1, bad, 2]))).numpy()

    with pytest.raises(BaseException) as caught:
        on_ranks(2, body)
    assert any(isinstance(error, OutOfBoundsError) for error in flat_errors(caught.value))


def cross_entropy(logits, targets):
    """Return the losses, and the gradient of their sum, in float64."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=-1))
    rows = np.arange(len(targets))
    grad = np.exp(shifted - log_sum[:, None])
    grad[rows, targets] -= 1
    return log_sum - shifted[rows, targets], grad


@pytest.mark.adr("0027-D6")
@examples(8)
@given(
    world_size=st.sampled_from(WORLD_SIZES),
    local_vocab=st.sampled_from((1, 3, 50, 1500)),
    rows=st.integers(1, 9),
    scale=st.sampled_from((1.0, 100.0)),
    dtype=st.sampled_from((np.float32, np.float16)),
    seed=st.integers(0, 99),
)
def test_the_cross_entropy_of_split_logits_is_that_of_the_whole(
    on_ranks, world_size, local_vocab, rows, scale, dtype, seed
):
    random = np.random.default_rng(seed)
    vocab = local_vocab * world_size
    logits = (scale * random.standard_normal((rows, vocab))).astype(dtype)
    targets = random.integers(0, vocab, rows)
    grad_loss = random.standard_normal(rows).astype(np.float32)
    losses, grads = cross_entropy(logits.astype(np.float64), targets)

    def body(torch, rank):
        loss_of = tp.VocabParallelCrossEntropy(torch=torch)
        mine = np.ascontiguousarray(np.split(logits, world_size, axis=1)[rank])
        loss = loss_of(torch.from_numpy(mine), torch.from_numpy(targets))
        grad = loss_of.backward(torch.from_numpy(grad_loss))
        assert grad.dtype.numpy == dtype
        return loss.numpy().copy(), grad.numpy().copy()

    result, grad_parts = zip(*on_ranks(world_size, body), strict=True)
    # Logits and their differences are exact to float32's half unit at `largest`; an exponential
    # turns that absolute error into a relative one.
    largest = 2 * float(np.abs(logits).max()) + 1
    eps = float(np.finfo(np.float32).eps) * largest * 8
    for loss in result:
        assert loss.dtype == np.float32
        assert loss.tobytes() == result[0].tobytes()
        np.testing.assert_allclose(loss, losses, rtol=eps, atol=eps)
    half_unit = float(np.finfo(dtype).eps)
    wanted = grads * grad_loss[:, None]
    limit = (eps + half_unit) * np.abs(grad_loss).max()
    np.testing.assert_allclose(
        np.concatenate(grad_parts, axis=1).astype(np.float64), wanted, rtol=0, atol=limit
    )


@pytest.mark.parametrize("bad", [-1, 8, 10_000, 1 << 40])
def test_a_target_outside_the_vocabulary_is_an_error(on_ranks, bad):
    def body(torch, _rank):
        logits = torch.zeros((3, 4), dtype="f32")
        loss_of = tp.VocabParallelCrossEntropy()
        return loss_of(logits, torch.from_numpy(np.array([1, bad, 2]))).numpy()

    with pytest.raises(BaseException) as caught:
        on_ranks(2, body)
    assert any(isinstance(error, OutOfBoundsError) for error in flat_errors(caught.value))


def test_what_does_not_fit_is_refused(on_ranks):
    def body(torch, _rank):
        loss_of = tp.VocabParallelCrossEntropy()
        logits = torch.zeros((3, 4), dtype="f32")
        with pytest.raises(ValueError, match=r"logits \(3, 4\).*targets \(2,\)"):
            loss_of(logits, torch.zeros((2,), dtype="i64"))
        with pytest.raises(ValueError, match=r"int32 or int64.*float32"):
            loss_of(logits, torch.zeros((3,), dtype="f32"))
        with pytest.raises(KernbenchError, match="needs a forward before it"):
            loss_of.backward(torch.ones((3,), dtype="f32"))
        loss_of(logits, torch.zeros((3,), dtype="i64"))
        with pytest.raises(ValueError, match=r"one element per row \(3\).*\(2,\)"):
            loss_of.backward(torch.ones((2,), dtype="f32"))
        with pytest.raises(ValueError, match=r"int32 or int64.*float32"):
            tp.VocabParallelEmbedding(4, 2)(torch.zeros((3,), dtype="f32"))
        with pytest.raises(ValueError, match=r"at least 1 element.*\(0,\)"):
            tp.VocabParallelEmbedding(4, 2)(torch.zeros((0,), dtype="i64"))

    on_ranks(1, body)
