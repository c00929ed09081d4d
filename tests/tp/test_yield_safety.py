"""D7: a rank that does nothing but call forward lets the other ranks run."""

import numpy as np
import pytest

from kernbench import tp

# Far more calls than the other rank needs time for.
PATIENCE = 2000


class Starved(Exception):
    """Rank 1 did not run within PATIENCE forwards of rank 0."""


def activations(torch):
    return torch.zeros((2, 4), dtype="f16")


def ids(torch):
    return torch.from_numpy(np.zeros(2, np.int64))


def cross_entropy(torch):
    logits, targets, loss_of = activations(torch), ids(torch), tp.VocabParallelCrossEntropy()
    return lambda: loss_of(logits, targets)


def layer(build, make_input):
    def make(torch):
        built, x = build(), make_input(torch)
        return lambda: built(x)

    return make


SPINNING = {
    "column parallel": layer(lambda: tp.ColumnParallelLinear(4, 4), activations),
    "row parallel": layer(lambda: tp.RowParallelLinear(4, 4, bias=True), activations),
    "embedding": layer(lambda: tp.VocabParallelEmbedding(4, 4), ids),
    "cross entropy": cross_entropy,
}


@pytest.mark.adr("0027-D7")
@pytest.mark.parametrize("name", SPINNING)
def test_a_rank_that_only_calls_forward_does_not_starve_the_others(on_ranks, name):
    done = []

    def body(torch, rank):
        # Tensor size 1: forward has no partner, so only its own waits let the other rank in.
        forward = SPINNING[name](torch)
        if rank:
            forward()
            done.append(rank)
            return 0
        for calls in range(PATIENCE):
            if done:
                return calls
            forward()
        raise Starved

    calls, _ = on_ranks(2, body, tensor_size=1)
    assert calls > 0


def test_a_forward_that_never_waits_would_be_caught(on_ranks, monkeypatch):
    monkeypatch.setitem(SPINNING, "never waits", lambda _torch: lambda: None)
    with pytest.raises(ExceptionGroup) as caught:
        test_a_rank_that_only_calls_forward_does_not_starve_the_others(on_ranks, "never waits")
    assert caught.group_contains(Starved)
