"""Flash attention's tiles against brute force over queries and keys."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.library_kernels import (
    AttentionProblem,
    FlashKernel,
    LibraryKernel,
    Splits,
    efficient_splits,
    flash_launches,
    ragged_launches,
)

KERNEL = FlashKernel(name="test", block_m=16, block_n=8)


def blocks_seen(problem: AttentionProblem, kernel: FlashKernel) -> int:
    """Blocks of keys from the first that some query of a tile sees to the last, over all tiles."""
    result = 0
    offset = problem.kv_len - problem.q_len
    packed = problem.group if kernel.packs_groups else 1
    rows = problem.q_len * packed
    for first in range(0, rows, kernel.block_m):
        queries = {row // packed for row in range(first, min(first + kernel.block_m, rows))}
        seen = {
            key // kernel.block_n
            for query in queries
            for key in range(problem.kv_len)
            if (not problem.one_sided or key <= query + offset)
            and (not problem.window or key >= query + offset - problem.window)
        }
        result += max(seen) - min(seen) + 1
    return result * problem.batch * problem.heads // packed


@given(
    st.integers(1, 3),
    st.integers(1, 70),
    st.integers(0, 50),
    st.booleans(),
    st.integers(0, 40),
    st.booleans(),
)
def test_tiles_go_over_the_keys_that_their_queries_see(
    batch: int, q_len: int, more: int, causal: bool, window: int, packs: bool
) -> None:
    problem = AttentionProblem(
        batch=batch, q_len=q_len, kv_len=q_len + more, heads=4, kv_heads=2, head_dim=64,
        causal=causal, window=window,
    )  # fmt: skip
    described = replace(KERNEL, packs_groups=packs)
    kernel = flash_launches(problem, described, 1)[0]
    assert sum(tile.count * tile.trips for tile in kernel.tiles) == blocks_seen(problem, described)
    rows, sequences = (2 * q_len, 2) if packs else (q_len, 4)
    assert kernel.num_tiles == -(-rows // 16) * batch * sequences


def test_packed_groups_fill_tiles_with_the_rows_of_heads_that_share_keys() -> None:
    problem = AttentionProblem(batch=2, q_len=1, kv_len=64, heads=8, kv_heads=2, head_dim=64)
    packed = FlashKernel(name="test", block_m=16, block_n=8, packs_groups=True)
    assert flash_launches(problem, KERNEL, 1)[0].num_tiles == 16
    assert flash_launches(problem, packed, 1)[0].num_tiles == 4


def decode(batch: int, kv_len: int, heads: int = 8, kv_heads: int = 2) -> AttentionProblem:
    return AttentionProblem(
        batch=batch, q_len=1, kv_len=kv_len, heads=heads, kv_heads=kv_heads, head_dim=64
    )


@given(st.integers(1, 200), st.integers(1, 132), st.integers(1, 400))
def test_efficient_splits_are_the_fewest_that_are_nearly_best(
    tiles: int, slots: int, blocks: int
) -> None:
    result = efficient_splits(tiles, slots, blocks)
    assert 1 <= result <= max(1, min(blocks, slots))

    def busy(splits: int) -> float:
        return tiles * splits / slots / math.ceil(tiles * splits / slots)

    if tiles < 0.8 * slots:
        useful = {-(-blocks // index): index for index in range(min(128, slots, blocks), 0, -1)}
        assert busy(result) >= 0.85 * max(busy(item) for item in useful.values()) * (1 - 1e-9)
    else:
        assert result == 1


def test_split_keys_are_combined_by_a_second_launch() -> None:
    kernel = replace(KERNEL, packs_groups=True, splits=Splits.FILL)
    main, combine = flash_launches(decode(1, 256), kernel, num_pes=16)
    # 32 blocks of keys among 16 PEs: each of the 2 tiles has 8 splits of 4 blocks.
    assert main.num_tiles == 16
    assert {tile.trips for tile in main.tiles} == {4}
    assert combine.name == "flash_combine"
    assert combine.hbm_read_bytes == main.hbm_written_bytes == 8 * 8 * 64 * 4
    (alone,) = flash_launches(decode(8, 256), kernel, num_pes=16)
    assert alone.hbm_written_bytes == 8 * 8 * 64 * 2


def test_a_choice_made_for_one_sequence_leaves_partial_results_of_all() -> None:
    kernel = replace(KERNEL, packs_groups=True, splits=Splits.DYNAMIC)
    launches = flash_launches(decode(512, 256), kernel, num_pes=108)
    assert [launch.name for launch in launches] == ["test", "flash_combine"]
    # 1,024 tiles fill the machine: nothing is split, but the kernel that splits runs.
    assert launches[0].num_tiles == 1024
    short = flash_launches(decode(512, 32), kernel, num_pes=108)
    assert [item.name for item in short] == ["test"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # 66 tiles of 4 blocks and 66 of 9: with a tenth more, 8 for each of 132 PEs.
        (Splits.DYNAMIC, {4: 66, 5: 132}),
        (Splits.EFFICIENT, {4: 66, 9: 66}),
    ],
)
def test_sequences_are_split_by_their_own_blocks(rule: Splits, expected: dict[int, int]) -> None:
    kernel = replace(KERNEL, packs_groups=True, splits=rule)
    launches = ragged_launches([decode(33, 32), decode(33, 72)], kernel, 132)
    tiles = Counter[float]()
    for item in launches[0].tiles:
        tiles[item.trips] += item.count
    assert tiles == expected


def test_a_single_query_of_a_group_is_put_together_and_back() -> None:
    kernel = replace(KERNEL, splits=Splits.SINGLE_QUERY)
    names = [
        flash_launch.name for flash_launch in flash_launches(decode(512, 32), kernel, num_pes=108)
    ]
    assert names == ["flash_copy", "test", "flash_copy"]
    plain = flash_launches(decode(512, 32, heads=2), kernel, num_pes=108)
    assert [item.name for item in plain] == ["test"]
    assert plain[0].num_tiles == 1024
    (one_sequence,) = flash_launches(decode(1, 32), kernel, num_pes=1)
    assert one_sequence.name == "test"
    window = replace(decode(512, 32), window=16)
    (windowed,) = flash_launches(window, kernel, num_pes=108)
    assert windowed.num_tiles == 512 * 8


def test_head_sizes_are_padded_as_kernels_are_compiled() -> None:
    padded = {
        padding: replace(KERNEL, padding=padding).head_padded(72)
        for padding in ("none", "16", "flash", "power")
    }
    assert padded == {"none": 72, "16": 80, "flash": 96, "power": 128}


def test_tiles_shrink_with_few_rows_and_blocks_with_wide_heads() -> None:
    kernel = replace(KERNEL, block_m=128, block_n=64, least_block_m=16, block_n_of_128=True)
    assert [kernel.rows_of_tile(rows) for rows in (1, 17, 100, 1000)] == [16, 32, 128, 128]
    assert [kernel.keys_of_block(size) for size in (64, 128, 256)] == [128, 64, 32]


def test_the_sum_of_partial_results_goes_over_splits_one_after_another() -> None:
    kernel = replace(KERNEL, packs_groups=True, splits=Splits.FILL)
    combines = [flash_launches(decode(batch, 256), kernel, num_pes=16)[1] for batch in (1, 2, 4)]
    assert [{tile.trips for tile in combine.tiles} for combine in combines] == [{8}, {4}, {2}]
    for combine in combines:
        assert combine.port_bytes == pytest.approx(combine.hbm_bytes)


def test_tiles_say_how_many_rows_they_have() -> None:
    packed = replace(KERNEL, packs_groups=True)
    for heads, rows in ((4, 2), (16, 8), (64, 16)):
        (kernel,) = flash_launches(decode(4, 64, heads=heads), packed, num_pes=108)
        assert {tile.rows for tile in kernel.tiles} == {rows}


@given(st.integers(1, 70), st.integers(0, 50), st.booleans(), st.integers(0, 40))
def test_masked_loads_are_of_the_keys_that_a_tile_sees(
    q_len: int, more: int, causal: bool, window: int
) -> None:
    problem = AttentionProblem(
        batch=2, q_len=q_len, kv_len=q_len + more, heads=4, kv_heads=4, head_dim=64,
        causal=causal, window=window,
    )  # fmt: skip
    each_key = replace(KERNEL, block_n=1)
    whole = flash_launches(problem, each_key, 1)[0]
    masked = flash_launches(problem, replace(KERNEL, loads_seen_keys=True), 1)[0]
    boxes = flash_launches(problem, KERNEL, 1)[0]

    def loaded(kernel: LibraryKernel) -> float:
        return sum(tile.count * tile.trips * tile.trip.loaded_bytes for tile in kernel.tiles)

    assert loaded(masked) == pytest.approx(loaded(whole))
    assert loaded(boxes) >= loaded(masked) - 1


def test_splits_of_triton_kernels_are_those_of_their_sources() -> None:
    segments = replace(KERNEL, packs_groups=True, splits=Splits.SEGMENTS)
    for batch, expected in ((1, 16), (64, 16), (65, 1)):
        main, *others = flash_launches(decode(batch, 8192), segments, num_pes=132)
        assert main.num_tiles == 2 * batch * expected
        assert len(others) == (batch <= 64)
    growing = replace(KERNEL, packs_groups=True, splits=Splits.GROWING)
    # 132 PEs, 64 tiles: 3 for each; twice as many from 4 times 64 keys on.
    for kv_len, expected in ((64, 3), (128, 3), (256, 5), (1 << 20, 8)):
        main, combine = flash_launches(decode(32, kv_len), growing, num_pes=132)
        assert main.num_tiles == 64 * expected
        assert combine.name == "flash_combine"


@pytest.mark.parametrize(
    ("batch", "keys", "splits"),
    [(1, 100, 1), (1, 512, 4), (1, 16384, 32), (16, 16384, 32), (64, 16384, 8), (1024, 512, 1)],
)
def test_parts_of_a_history_are_128_keys_their_root_or_eight_rounds(
    batch: int, keys: int, splits: int
) -> None:
    kernel = replace(KERNEL, splits=Splits.HISTORY, packs_groups=True)
    problem = AttentionProblem(
        batch=batch, q_len=1, kv_len=keys, heads=8, kv_heads=2, head_dim=64
    )  # fmt: skip
    launches = flash_launches(problem, kernel, num_pes=128)
    assert launches[0].num_tiles == 2 * batch * splits
    assert len(launches) == (1 if splits == 1 else 2)


def test_filling_up_leaves_no_pe_free() -> None:
    for rule, expected in ((Splits.FILL, 6 * 2), (Splits.FILL_UP, 6 * 3)):
        kernel = replace(KERNEL, packs_groups=True, splits=rule)
        assert flash_launches(decode(3, 8192), kernel, num_pes=16)[0].num_tiles == expected


def test_programs_of_a_pe_shrink_with_wide_heads() -> None:
    kernel = replace(KERNEL, resident=2, resident_of_128=True)
    assert [kernel.resident_with(size) for size in (64, 128, 256, 512)] == [4, 2, 1, 1]
