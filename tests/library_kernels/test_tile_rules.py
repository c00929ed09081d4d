"""Rules of tiles: every result has one, and it is the one that the stack's source names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import load_library, load_machine
from kernbench.library_kernels import Product, ProductTile, product_candidates
from kernbench.library_kernels.tile_rules import tile_rules

SIZES = st.integers(1, 1 << 20)


def ruled_tile(whose: tuple[str, str], m: int, n: int, k: int = 128) -> ProductTile:
    return next(rule.tile for rule in tile_rules()[whose] if rule.takes(m, n, k))


@given(SIZES, SIZES, st.sampled_from(sorted(tile_rules())))
def test_every_result_has_a_tile_of_the_first_rule_that_it_is_within(
    m: int, n: int, whose: tuple[str, str]
) -> None:
    within = [rule for rule in tile_rules()[whose] if m <= rule.most_rows]
    within = [rule for rule in within if n <= rule.most_columns]
    for depth in (128, 1 << 20):
        deep = [item.tile for item in within if item.least_depth <= depth]
        assert ruled_tile(whose, m, n, depth) is deep[0]


@pytest.mark.parametrize(
    ("whose", "m", "n", "tile", "cluster"),
    [
        # Bounds belong to the smaller tile.
        (("sm90", "vllm"), 16, 1280, (16, 64), (2, 1)),
        (("sm90", "vllm"), 64, 1281, (64, 64), (1, 1)),
        (("sm90", "vllm"), 65, 64, (64, 128), (2, 1)),
        (("sm90", "vllm"), 129, 1 << 16, (128, 128), (2, 1)),
        (("sm90", "sglang_before"), 1, 64, (64, 64), (1, 8)),
        (("sm90", "sglang_before"), 256, 1 << 16, (64, 64), (1, 1)),
        (("sm90", "sglang_before"), 1025, 64, (128, 128), (2, 1)),
        (("sm89", "vllm"), 300, 8192, (256, 128), (1, 1)),
        (("sm89", "sglang"), 17, 16385, (16, 64), (1, 1)),
        (("sm120", "vllm"), 256, 64, (64, 64), (1, 1)),
        (("sm120", "sglang"), 1, 64, (128, 128), (1, 1)),
    ],
)
def test_shapes_take_the_tile_that_the_source_names(
    whose: tuple[str, str], m: int, n: int, tile: tuple[int, int], cluster: tuple[int, int]
) -> None:
    result = ruled_tile(whose, m, n)
    assert (result.block_m, result.block_n) == tile
    assert (result.cluster_rows, result.cluster_columns) == cluster


def test_vllms_blocks_of_few_rows_do_one_tile_and_the_widest_wait_for_memory() -> None:
    tiles = [ruled_tile(("sm90", "vllm"), m, 8192) for m in (16, 17, 64, 65, 129)]
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
    result = ruled_tile(("sm100", "vllm"), m, 4096, k)
    assert ((result.block_m, result.block_n), result.pes) == (tile, pes)


@pytest.mark.parametrize("preset", ["l40s", "h200", "b200", "rtx-pro-6000"])
def test_a_product_of_an_engine_has_the_one_launch_of_its_rule(preset: str) -> None:
    machine = load_machine(preset)
    library = load_library(machine.spec.kernel_library or "")
    product = Product(m=225, n=256, k=12288, dtype="float8_e4m3fn", itemsize=1, library="vllm")
    ((kernel,),) = product_candidates(product, machine.sip, library)
    assert kernel.name == "cutlass_fp8"
    tile = ruled_tile((library.architecture, "vllm"), 225, 256, 12288)
    assert kernel.num_tiles == -(-225 // tile.block_m) * -(-256 // tile.block_n) * tile.pes
