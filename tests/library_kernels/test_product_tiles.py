"""A product by one tile: blocks, bytes and arithmetic against brute force."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import KernelConstants, load_machine
from kernbench.library_kernels import (
    LibraryKernel,
    Product,
    ProductTile,
    tiled_product,
    time_kernel,
)

SIZES = st.integers(1, 700)
SIP = load_machine("h200").sip


def launches(product: Product, tile: ProductTile, parts: int = 1) -> tuple[LibraryKernel, ...]:
    return tiled_product(product, tile, parts, "p", SIP)


def only(m: int, n: int, k: int, tile: ProductTile) -> LibraryKernel:
    (result,) = launches(Product(m=m, n=n, k=k), tile)
    return result


@given(SIZES, SIZES, SIZES, st.sampled_from([1, 2]))
def test_tiles_cover_every_result_and_all_of_k(m: int, n: int, k: int, pes: int) -> None:
    kernel = only(m, n, k, ProductTile(128, 64, pes=pes))
    rows = len({row // 128 for row in range(m)})
    cols = len({col // 64 for col in range(n)})
    trips = len({index // 64 for index in range(k)})
    assert kernel.num_tiles == rows * cols * pes
    assert kernel.flops == 2.0 * (rows * 128) * (cols * 64) * (trips * 64)
    assert kernel.hbm_bytes == 2.0 * (m * k + n * k + m * n)


def test_two_pes_load_the_weights_of_their_tile_once() -> None:
    alone, paired = (only(256, 256, 64, ProductTile(256, 256, pes=pes)) for pes in (1, 2))
    assert alone.port_bytes == paired.port_bytes
    assert paired.tiles[0].trip.loaded_bytes == alone.tiles[0].trip.loaded_bytes / 2


@given(
    st.integers(64, 700),
    st.integers(32, 700),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 8]),
)
def test_clusters_are_whole_and_load_an_operand_once(m: int, n: int, rows: int, cols: int) -> None:
    tile = ProductTile(64, 32, cluster_rows=rows, cluster_columns=cols)
    alone, kernel = (only(m, n, 256, item) for item in (ProductTile(64, 32), tile))
    clusters = len({row // (64 * rows) for row in range(m)})
    clusters *= len({col // (32 * cols) for col in range(n)})
    assert kernel.num_tiles == clusters * rows * cols >= alone.num_tiles
    # Of a cluster, each row of tiles brings its part of A once, and each column its part of B.
    loaded = kernel.tiles[0].trip.loaded_bytes * rows * cols
    assert loaded == pytest.approx(2.0 * 64 * (rows * 64 + cols * 32))


@given(SIZES, SIZES, st.integers(1, 3000), st.sampled_from([2, 4, 8]))
def test_parts_of_k_do_all_its_work_and_are_added_up(m: int, n: int, k: int, parts: int) -> None:
    product, adding = launches(Product(m=m, n=n, k=k), ProductTile(64, 64), parts)
    assert product.tiles[0].trips * parts >= math.ceil(k / 64)
    assert product.num_tiles % parts == 0
    assert adding.name == "blas_sum_parts"
    assert adding.hbm_written_bytes == 2.0 * m * n


def test_narrow_weights_are_loaded_narrow_and_converted() -> None:
    tile, product = ProductTile(64, 128), Product(m=64, n=128, k=640)
    (wide,) = launches(product, tile)
    (narrow,) = launches(replace(product, weight_bytes=0.5), tile)
    assert wide.hbm_bytes - narrow.hbm_bytes == 1.5 * 128 * 640
    assert narrow.tiles[0].trip.simple * narrow.tiles[0].trips == 2 * 128 * 640


def test_accumulators_that_registers_do_not_hold_are_moved_every_trip() -> None:
    kept, spilled = (
        only(256, 128, 640, ProductTile(256, 128, moves_per_result=moves)) for moves in (0.0, 3.0)
    )
    assert kept.tiles[0].trip.simple == 0
    assert spilled.tiles[0].trip.simple == 3.0 * 256 * 128


def test_fp4_takes_twice_as_much_of_k_in_a_trip_as_fp8() -> None:
    fp8, fp4 = (
        launches(
            Product(m=128, n=128, k=1024, dtype="float8_e4m3fn", itemsize=size),
            ProductTile(128, 128),
        )[0]
        for size in (1.0, 0.5625)
    )
    assert (fp8.tiles[0].trips, fp4.tiles[0].trips) == (8, 4)


def test_blocks_of_two_sms_that_are_under_way_are_half_as_many() -> None:
    # Neither operand fits half of L2. A pair of SMs makes what two blocks of half the rows are.
    product = Product(m=65536, n=65536, k=8192)
    (one,) = launches(product, ProductTile(128, 256))
    (two,) = launches(product, ProductTile(256, 256, pes=2))
    assert two.num_tiles == one.num_tiles
    assert two.hbm_read_bytes == pytest.approx(one.hbm_read_bytes, rel=0.15)


@given(SIZES, SIZES, st.integers(1, 3000))
def test_a_product_never_beats_its_arithmetic(m: int, n: int, k: int) -> None:
    sip = load_machine("b200").sip
    kernel = only(m, n, k, ProductTile(128, 64))
    result = time_kernel(kernel, sip, KernelConstants(source="assumed: a test"))
    peak = sip.gemm_flops_per_clock("bfloat16") * sip.num_pes * float(sip.clock_ghz) * 1e3
    assert result.total_us > 2.0 * m * n * k / peak
