"""Loads of experts against token-by-token counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import UsageError
from validation.predictors.libraries.expert_loads import (
    Dealing,
    Others,
    Routing,
    load_of,
)

LOADS = st.sampled_from(("balanced", "power_law_1.01", "power_law_1.2"))


@given(st.integers(1, 300), st.integers(1, 4), st.sampled_from((8, 64)), LOADS)
def test_one_rank_gets_every_row(tokens: int, topk: int, experts: int, distribution: str) -> None:
    load = load_of(Routing(tokens, topk, experts, 1, distribution))
    # Of several draws, the mean of each rank of popularity is rounded.
    assert load.total == pytest.approx(tokens * topk, abs=experts / 2)
    assert load.tokens == tokens
    assert len(load.rows) <= min(experts, tokens * topk)


def test_balanced_tokens_take_experts_a_stride_apart() -> None:
    # 8 tokens of 2 of 8 experts: token t takes t and t + 4, so each expert has 2 rows.
    assert load_of(Routing(8, 2, 8)).rows == (2,) * 8
    # Half of the experts on each of two ranks, and every token has one of them.
    half = load_of(Routing(8, 2, 8, 2, own_tokens=True))
    assert (half.rows, half.tokens, half.slots) == ((2,) * 4, 8, 8)
    # On one rank of eight, two tokens chose its expert.
    eighth = Routing(8, 2, 8, 8, own_tokens=True)
    assert (load_of(eighth).rows, load_of(eighth).tokens) == ((2,), 2)


def test_rows_of_other_ranks_stay_or_are_computed() -> None:
    zeroed = load_of(Routing(8, 2, 8, 8, others=Others.ZEROED))
    assert (zeroed.total, zeroed.slots, zeroed.tokens) == (2, 16, 8)
    computed = load_of(Routing(8, 2, 8, 8, others=Others.COMPUTED, own_tokens=True))
    assert (computed.rows, computed.tokens) == ((4,), 2)


def test_a_power_law_is_the_rank_with_most_rows() -> None:
    even = load_of(Routing(4096, 8, 128, 16))
    steep = load_of(Routing(4096, 8, 128, 16, "power_law_1.2"))
    assert even.total == 4096 * 8 // 16
    assert steep.total > 1.5 * even.total
    assert list(steep.rows) == sorted(steep.rows, reverse=True)


@pytest.mark.parametrize("dealing", Dealing)
def test_every_row_is_dealt(dealing: Dealing) -> None:
    load = load_of(Routing(64, 8, 128, 1, "power_law_1.2", dealing=dealing))
    assert load.total == pytest.approx(64 * 8, abs=64)
    assert max(load.rows) <= 64


def test_rows_left_by_rounding_fall_to_one_rank_or_to_all_in_turn() -> None:
    # 32 rows of 256 experts on four ranks: rounding leaves about half of them.
    touched = {
        dealing: len(load_of(Routing(4, 8, 256, 4, "power_law_1.01", dealing=dealing)).rows)
        for dealing in Dealing
    }
    assert touched[Dealing.LEAST_LOADED] > 1.5 * touched[Dealing.IN_TURN]
    assert touched[Dealing.MOST_LOADED] < touched[Dealing.LEAST_LOADED]
    # In turn, a rank gets about a fourth of them.
    assert 8 <= touched[Dealing.IN_TURN] <= 13


def test_random_tokens_touch_as_many_experts_as_are_expected() -> None:
    generator = np.random.default_rng(0)
    drawn = [
        len({int(item) for _ in range(20) for item in generator.permutation(64)[:4]})
        for _ in range(50)
    ]
    load = load_of(Routing(20, 4, 64, distribution="random"))
    assert len(load.rows) == pytest.approx(np.mean(drawn), abs=1.0)
    assert load.total == 80


def test_an_unknown_distribution_is_an_error() -> None:
    with pytest.raises(UsageError, match="no load is called 'skewed'"):
        load_of(Routing(8, 2, 8, 1, "skewed"))
