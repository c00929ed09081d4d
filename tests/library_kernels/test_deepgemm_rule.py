"""DeepGEMM's choice of a tile: what it allows, and what it does not know."""

from hypothesis import given
from hypothesis import strategies as st

from kernbench.library_kernels.deepgemm_rule import deepgemm_tile

SIZES = st.integers(1, 70_000)


@given(SIZES, SIZES, SIZES, st.sampled_from([78, 132]))
def test_a_tile_fits_and_a_cluster_needs_a_second_wave(m: int, n: int, k: int, pes: int) -> None:
    tile = deepgemm_tile(m, n, k, pes)
    assert tile.block_m in (16, 32, 64, 128, 256)
    assert tile.block_n % 16 == 0
    assert not (tile.block_m > 128 and tile.block_n > 128)
    assert tile.block_m >= 64 or m <= 32
    if tile.cluster_rows * tile.cluster_columns > 1:
        assert -(-m // tile.block_m) * -(-n // tile.block_n) > pes
        assert tile.moves_per_result == 0


def test_one_wave_of_the_largest_tiles_is_chosen_and_spills() -> None:
    # On 132 SMs these take 118, 59 and 272 us, three to six times as long as with smaller tiles.
    for m, n, k in ((193, 16384, 5120), (3840, 1024, 2048), (3584, 768, 12288)):
        tile = deepgemm_tile(m, n, k, 132)
        assert tile.block_m * tile.block_n >= 128 * 192
        assert tile.moves_per_result > 0
    # The same tile in a cluster is fast.
    tile = deepgemm_tile(8192, 7168, 7168, 132)
    assert (tile.block_m, tile.block_n) == (256, 128)
    assert tile.cluster_rows * tile.cluster_columns == 2
    assert tile.moves_per_result == 0
