"""Decode on latent vectors, and products by head: tiles against counting, bytes against shapes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.library_kernels import AttentionProblem
from validation.kernels import LatentKernel, batched_product, latent_decode

NUM_PES = 132
WHOLE = LatentKernel(name="test", waves=0)
SPLIT = LatentKernel(name="test", combine="combine")


def decode(batch: int, heads: int, kv_len: int, kv_bytes: int = 2) -> AttentionProblem:
    return AttentionProblem(
        batch=batch, q_len=1, kv_len=kv_len, heads=heads, kv_heads=1, head_dim=576, value_dim=512,
        kv_bytes=kv_bytes,
    )  # fmt: skip


@given(st.integers(1, 300), st.integers(1, 128), st.integers(1, 5000))
def test_tiles_go_over_every_key_of_every_sequence(batch: int, heads: int, kv_len: int) -> None:
    problem = decode(batch, heads, kv_len)
    blocks = batch * math.ceil(heads / 64) * math.ceil(kv_len / 64)
    for kernel in (WHOLE, SPLIT, replace(SPLIT, persistent=True), replace(SPLIT, least_blocks=4)):
        tiles = latent_decode(problem, kernel, NUM_PES)[0].tiles
        went_over = sum(tile.count * tile.trips for tile in tiles)
        assert went_over >= blocks - 1e-6
        # Parts of a sequence are equally long: the last may have less to do than its program waits.
        assert went_over <= blocks + batch * 2 * NUM_PES


def test_few_sequences_are_split_until_the_device_is_full() -> None:
    assert latent_decode(decode(4, 64, 65536), WHOLE, NUM_PES)[0].num_tiles == 4
    assert latent_decode(decode(4, 64, 65536), SPLIT, NUM_PES)[0].num_tiles == 4 * (132 // 4)
    assert latent_decode(decode(4, 64, 64), SPLIT, NUM_PES)[0].num_tiles == 4
    four = replace(SPLIT, least_blocks=4)
    assert latent_decode(decode(1, 64, 64 * 16), four, NUM_PES)[0].num_tiles == 4


def test_latents_come_from_hbm_once_for_all_heads_and_both_products() -> None:
    kernel = latent_decode(decode(64, 128, 65536), SPLIT, NUM_PES)[0]
    latents = 64 * 65536 * 576 * 2
    assert kernel.hbm_read_bytes == pytest.approx(latents, rel=0.01)
    narrow = latent_decode(decode(64, 128, 65536, kv_bytes=1), SPLIT, NUM_PES)[0]
    assert narrow.hbm_read_bytes == pytest.approx(latents / 2, rel=0.01)


def test_a_cache_that_is_converted_first_is_read_and_written_once_more() -> None:
    problem = decode(64, 16, 65536)
    convert, attend, combine = latent_decode(problem, replace(SPLIT, cache_pass="convert"), NUM_PES)
    elements = 64 * 65536 * 576
    assert convert.hbm_bytes == 3 * elements
    assert (attend.name, combine.name) == ("test", "combine")


def test_parts_are_added_up_for_every_query() -> None:
    combine = latent_decode(decode(2, 128, 65536), SPLIT, NUM_PES)[1]
    (tiles,) = combine.tiles
    assert (tiles.count, tiles.trips) == (2 * 128, 132 // 4)


@given(st.integers(1, 128), st.integers(1, 5000), st.sampled_from([128, 512]))
def test_tiles_of_a_product_cover_its_results(batch: int, m: int, n: int) -> None:
    kernel = batched_product("test", batch, m, n, 640 - n, NUM_PES)
    useful = 2.0 * batch * m * n * (640 - n)
    assert kernel.flops >= useful
    (tiles,) = kernel.tiles
    assert tiles.count * tiles.trip.flops / (2 * 64) >= batch * m * n


def test_a_product_takes_smaller_tiles_where_large_ones_leave_units_idle() -> None:
    (few,) = batched_product("test", 4, 256, 512, 128, NUM_PES).tiles
    (many,) = batched_product("test", 128, 256, 512, 128, NUM_PES).tiles
    assert few.trip.flops < many.trip.flops
    assert few.count > 4 * 2 * 4


def test_a_product_in_fp8_reads_half_the_bytes() -> None:
    wide = batched_product("test", 128, 4096, 512, 128, NUM_PES)
    narrow = batched_product("test", 128, 4096, 512, 128, NUM_PES, "float8_e4m3fn")
    assert narrow.hbm_read_bytes == wide.hbm_read_bytes / 2
    assert narrow.hbm_written_bytes == wide.hbm_written_bytes
