"""Products of libraries: tiles, bytes and arithmetic against brute force."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import KernelConstants, load_machine
from kernbench.library_kernels import LibraryKernel, time_kernel
from validation.kernels import GemmKernel, GemmProblem, LibraryTile, product_choices

SIZES = st.integers(1, 700)


def problem(m: int, n: int, k: int, weight_bytes: float = 2.0) -> GemmProblem:
    return GemmProblem(
        m=m, n=n, k=k, dtype="bfloat16", input_bytes=2.0, weight_bytes=weight_bytes
    )  # fmt: skip


def only(asked: GemmProblem, tile: LibraryTile) -> tuple[LibraryKernel, ...]:
    (result,) = product_choices(asked, GemmKernel(name="p", tiles=(tile,), sum_name="s"))
    return result


@given(SIZES, SIZES, SIZES, st.sampled_from([1, 2]))
def test_tiles_cover_every_result_and_all_of_k(m: int, n: int, k: int, pes: int) -> None:
    (kernel,) = only(problem(m, n, k), LibraryTile(m=128, n=64, pes=pes))
    rows = len({row // 128 for row in range(m)})
    cols = len({col // 64 for col in range(n)})
    trips = len({index // 64 for index in range(k)})
    assert kernel.num_tiles == rows * cols * pes
    assert kernel.flops == 2.0 * (rows * 128) * (cols * 64) * (trips * 64)
    assert kernel.hbm_bytes == 2.0 * (m * k + n * k + m * n)


def test_two_pes_load_the_weights_of_their_tile_once() -> None:
    asked = problem(256, 256, 64)
    (alone,), (paired,) = (only(asked, LibraryTile(m=256, n=256, pes=pes)) for pes in (1, 2))
    assert alone.port_bytes == paired.port_bytes
    assert paired.tiles[0].trip.loaded_bytes == alone.tiles[0].trip.loaded_bytes / 2


@given(SIZES, SIZES, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 8]))
def test_clusters_are_whole_and_load_an_operand_once(m: int, n: int, rows: int, cols: int) -> None:
    tile = LibraryTile(m=64, n=32, cluster_rows=rows, cluster_cols=cols)
    (alone,), (kernel,) = (
        only(problem(m, n, 256), item) for item in (LibraryTile(m=64, n=32), tile)
    )
    clusters = len({row // (64 * rows) for row in range(m)})
    clusters *= len({col // (32 * cols) for col in range(n)})
    assert kernel.num_tiles == clusters * rows * cols >= alone.num_tiles
    # Of a cluster, each row of tiles brings its part of A once, and each column its part of B.
    loaded = kernel.tiles[0].trip.loaded_bytes * rows * cols
    assert loaded == pytest.approx(2.0 * 64 * (rows * 64 + cols * 32))


@given(SIZES, SIZES, st.integers(1, 3000), st.sampled_from([2, 4, 8]))
def test_parts_of_k_do_all_its_work_and_are_added_up(m: int, n: int, k: int, parts: int) -> None:
    kernel = GemmKernel(name="p", tiles=(LibraryTile(m=64, n=64, splits=parts),), sum_name="s")
    choices = product_choices(problem(m, n, k), kernel)
    trips = math.ceil(k / 64)
    assert len(choices) == (parts <= trips)
    for product, adding in choices:
        assert product.tiles[0].trips * parts >= trips
        assert product.num_tiles % parts == 0
        assert adding.name == "s"
        assert adding.hbm_written_bytes == 2.0 * m * n


def test_narrow_weights_are_loaded_narrow_and_converted() -> None:
    tile = LibraryTile(m=64, n=128)
    kernel = GemmKernel(name="p", tiles=(tile,), simple_per_weight=1.0)
    ((wide,),) = product_choices(problem(64, 128, 640), GemmKernel(name="p", tiles=(tile,)))
    ((narrow,),) = product_choices(problem(64, 128, 640, weight_bytes=0.5), kernel)
    assert wide.hbm_bytes - narrow.hbm_bytes == 1.5 * 128 * 640
    assert narrow.tiles[0].trip.simple * narrow.tiles[0].trips == 128 * 640


def test_accumulators_that_registers_do_not_hold_are_moved_every_trip() -> None:
    kept, spilled = (
        only(problem(256, 128, 640), LibraryTile(m=256, n=128, moves_per_result=moves))[0]
        for moves in (0.0, 3.0)
    )
    assert kept.tiles[0].trip.simple == 0
    assert spilled.tiles[0].trip.simple == 3.0 * 256 * 128


def test_loads_that_run_ahead_hide_latency_behind_arithmetic() -> None:
    slow = KernelConstants.model_validate({"trip_ns": 1, "source": "assumed: a test"})
    sip = load_machine("h200").sip
    one, two = (
        product_choices(
            problem(128, 128, 6400),
            GemmKernel(name="p", tiles=(LibraryTile(m=128, n=128),), pipelined=pipelined),
        )[0][0]
        for pipelined in (False, True)
    )
    assert [item.overlap for item in (one, two)] == [3.0, 3.0]
    waits, hides = (time_kernel(item, sip, slow).tiles_us for item in (one, two))
    assert waits == pytest.approx(hides + 100 * 1e-3)


def test_fp4_takes_twice_as_much_of_k_in_a_trip_as_fp8() -> None:
    fp8, fp4 = (
        only(
            GemmProblem(
                m=128, n=128, k=1024, dtype="float8_e4m3fn", input_bytes=size, weight_bytes=size
            ),
            LibraryTile(m=128, n=128),
        )[0]
        for size in (1.0, 0.5625)
    )
    assert (fp8.tiles[0].trips, fp4.tiles[0].trips) == (8, 4)


@given(SIZES, SIZES, st.integers(1, 3000))
def test_a_product_never_beats_its_arithmetic(m: int, n: int, k: int) -> None:
    sip = load_machine("b200").sip
    (kernel,) = only(problem(m, n, k), LibraryTile(m=128, n=64))
    result = time_kernel(kernel, sip, KernelConstants(source="assumed: a test"))
    peak = sip.gemm_flops_per_clock("bfloat16") * sip.num_pes * float(sip.clock_ghz) * 1e3
    assert result.total_us > 2.0 * m * n * k / peak
