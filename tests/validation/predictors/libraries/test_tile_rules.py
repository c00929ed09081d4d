"""Rules of tiles: every result has one, and it is the one that the stack's source names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.predictors.libraries.tile_rules import FP8_RULES, ruled_tile

SIZES = st.integers(1, 1 << 20)


@given(SIZES, SIZES, st.sampled_from(sorted(FP8_RULES)))
def test_every_result_has_a_tile_of_the_first_rule_that_it_is_within(
    m: int, n: int, whose: tuple[str, str]
) -> None:
    rules = FP8_RULES[whose]
    within = [rule for rule in rules if m <= rule.most_rows and n <= rule.most_cols]
    for depth in (128, 1 << 20):
        deep = [item.tile for item in within if item.least_depth <= depth]
        assert ruled_tile(rules, m, n, depth) is deep[0]


@pytest.mark.parametrize(
    ("whose", "m", "n", "tile", "cluster"),
    [
        # Bounds belong to the smaller tile.
        (("sm90", "vllm"), 16, 1280, (16, 64), (2, 1)),
        (("sm90", "vllm"), 64, 1281, (64, 64), (1, 1)),
        (("sm90", "vllm"), 65, 64, (64, 128), (2, 1)),
        (("sm90", "vllm"), 129, 1 << 16, (128, 128), (2, 1)),
        (("sm90", "sglang"), 1, 64, (64, 64), (1, 8)),
        (("sm90", "sglang"), 256, 1 << 16, (64, 64), (1, 1)),
        (("sm90", "sglang"), 1025, 64, (128, 128), (2, 1)),
        (("sm89", "vllm"), 300, 8192, (256, 128), (1, 1)),
        (("sm89", "sglang"), 17, 16385, (16, 64), (1, 1)),
        (("sm120", "vllm"), 256, 64, (64, 64), (1, 1)),
        (("sm120", "sglang"), 1, 64, (128, 128), (1, 1)),
    ],
)
def test_shapes_take_the_tile_that_the_source_names(
    whose: tuple[str, str], m: int, n: int, tile: tuple[int, int], cluster: tuple[int, int]
) -> None:
    result = ruled_tile(FP8_RULES[whose], m, n)
    assert (result.m, result.n) == tile
    assert (result.cluster_rows, result.cluster_cols) == cluster


def test_vllms_blocks_of_few_rows_do_one_tile_and_the_widest_wait_for_memory() -> None:
    rules = FP8_RULES["sm90", "vllm"]
    tiles = [ruled_tile(rules, m, 8192) for m in (16, 17, 64, 65, 129)]
    assert [tile.in_waves for tile in tiles] == [True, True, True, False, False]
    assert [tile.missed for tile in tiles] == [0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("m", "k", "tile", "pes"),
    [
        (16, 1 << 14, (32, 128), 1),
        (17, 4095, (64, 64), 1),
        (64, 4096, (64, 128), 1),
        (256, 4096, (128, 128), 1),
        (257, 128, (256, 128), 2),
    ],
)
def test_vllm_on_blackwell_takes_wider_tiles_for_a_long_sum(
    m: int, k: int, tile: tuple[int, int], pes: int
) -> None:
    result = ruled_tile(FP8_RULES["sm100", "vllm"], m, 4096, k)
    assert ((result.m, result.n), result.pes) == (tile, pes)
