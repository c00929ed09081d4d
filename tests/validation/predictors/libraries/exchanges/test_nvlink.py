"""TensorRT-LLM's exchanges in a rack: closed forms of queues, stores and sums."""

from dataclasses import replace

import pytest

from validation.predictors.libraries.exchanges.asked import ExpertExchange
from validation.predictors.libraries.exchanges.nvlink import (
    QueueConstants,
    StoreConstants,
    prepare_us,
    queued_us,
    stored_us,
)

QUEUES = QueueConstants(
    count_us=10, count_doubling_us=1, count_token_us=0.5, count_token_doubling_us=0.1,
    dispatch_us=20, dispatch_doubling_us=2, combine_us=30, combine_doubling_us=3,
    token_us=1, least_token_us=4, link_share=0.5, crowding=0.25, sum_us=7, unpack_us=9,
)  # fmt: skip
STORES = StoreConstants(dispatch_us=5, combine_us=6, doubling_us=2, link_share=0.5)
ASKED = ExpertExchange(tokens=100, hidden=16_000, topk=4, experts=16, ranks=4, nodes=2)


def test_a_queue_takes_what_each_token_sends_to_other_ranks_or_the_least() -> None:
    # Three of four ranks are others: 96,000 bytes at 0.5 GB/s are 192 us.
    assert queued_us(ASKED, QUEUES, "bfloat16", 1, False) == pytest.approx(24 + 100 * 193)
    assert queued_us(ASKED, QUEUES, "fp8", 1e6, False) == pytest.approx(24 + 100 * 4)
    # Of 16 ranks a token meets four, 15 of 16 times another one; queues of many are slower.
    many = replace(ASKED, ranks=16)
    sent_us = 4 * 15 / 16 * 32_000 / 500 * 1.25
    assert queued_us(many, QUEUES, "bfloat16", 1, False) == pytest.approx(28 + 100 * (1 + sent_us))


def test_what_comes_back_is_summed_and_unpacked_where_it_was_packed() -> None:
    back = replace(ASKED, gathers=True)
    assert queued_us(back, QUEUES, "bfloat16", 1, False) == pytest.approx(36 + 100 * (193 + 7))
    packed_us = 1 + 3 * 9_000 / 500
    assert queued_us(back, QUEUES, "bfloat16", 1, True) == pytest.approx(36 + 100 * (packed_us + 9))


def test_stores_take_the_links_and_a_start_by_ranks() -> None:
    assert stored_us(ASKED, STORES, "nvfp4", 1) == pytest.approx(9 + 100 * 3 * 9_000 / 500)
    back = replace(ASKED, gathers=True, tokens=1)
    assert stored_us(back, STORES, "bfloat16", 1) == pytest.approx(10 + 192)


def test_counting_grows_with_tokens_and_ranks() -> None:
    assert prepare_us(ASKED, QUEUES) == pytest.approx(12 + 100 * 0.3)
