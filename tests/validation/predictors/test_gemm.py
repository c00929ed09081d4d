"""GEMM rows: the tuner finds what timing every tile would find."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.accuracy.rows.forms import Category
from kernbench.accuracy.rows.reference import read_rows
from kernbench.dtypes import bfloat16, float16, float32
from kernbench.hardware import load_machine
from kernbench.plans.tiles import GemmBounds, GemmTuner, Problem, tiles
from tests.tiers import examples
from validation.predictors.gemm import GemmPredictor
from validation.predictors.registry import make_predictor
from validation.sources.harness import Harness, gemm_harness

TUNER = GemmTuner()
KERNEL = Harness()
SIZES = st.sampled_from([1, 17, 64, 300, 1024])
MACHINES = st.sampled_from([load_machine(name, 1) for name in ("a100-sxm-80g", "h200", "ahbm")])


@pytest.mark.adr("0029-D2")
@examples(6)
@given(m=SIZES, n=SIZES, k=SIZES, machine=MACHINES)
def test_pruned_tuning_finds_the_fastest_tile_of_all(m: int, n: int, k: int, machine) -> None:
    problem = Problem(m, n, k, bfloat16)
    times = []
    for tile in tiles(problem, machine.sip):
        if tile.split_k == 1 or tile.steps(k) * tile.block_k >= 256:
            time_ps = TUNER.time_ps(problem, tile, machine)
            assert GemmBounds(problem, machine.sip).least_ps(tile) <= time_ps
            times.append(time_ps)
    assert TUNER.tune(problem, machine).kernel_us == min(times) / 1e6


SIDES = st.one_of(SIZES, st.integers(1, 3000), st.sampled_from([4096, 5120]))
PRESETS = ("a100-sxm-80g", "h100-sxm", "l40s", "mi300x", "v100", "ahbm")


@examples(25)
@given(
    m=SIDES,
    n=SIDES,
    k=SIDES,
    name=st.sampled_from(PRESETS),
    dtype=st.sampled_from([float16, float32]),
    harness=st.sampled_from([KERNEL, Harness(weight_buffers=6)]),
    pick=st.integers(0, 100),
)
def test_no_tile_is_faster_than_its_bound(
    m: int, n: int, k: int, name: str, dtype, harness: Harness, pick: int
) -> None:
    problem, machine = Problem(m, n, k, dtype), load_machine(name, 1)
    cached = harness.cached(problem.input_bytes, problem.weight_bytes, machine.sip)
    result = list(tiles(problem, machine.sip))
    tile = result[pick % len(result)]
    bound_ps = GemmBounds(problem, machine.sip, cached).least_ps(tile)
    assert bound_ps <= TUNER.time_ps(problem, tile, machine, cached)


@examples(12)
@given(
    n=SIDES,
    k=SIDES,
    name=st.sampled_from([name for name in PRESETS if name != "h100-sxm"]),
    dtype=st.sampled_from([float16, float32]),
    harness=st.sampled_from([KERNEL, Harness(weight_buffers=6)]),
    pick=st.integers(0, 3),
    split_k=st.sampled_from([1, 1, 4]),
)
def test_no_vector_tile_is_faster_than_its_bound(
    n: int, k: int, name: str, dtype, harness: Harness, pick: int, split_k: int
) -> None:
    problem, machine = Problem(1, n, k, dtype), load_machine(name, 1)
    cached = harness.cached(problem.input_bytes, problem.weight_bytes, machine.sip)
    result = [tile for tile in tiles(problem, machine.sip) if tile.is_vector]
    tile = replace(result[pick % len(result)], split_k=split_k)
    bound_ps = GemmBounds(problem, machine.sip, cached).least_ps(tile)
    assert bound_ps <= TUNER.time_ps(problem, tile, machine, cached)


def test_a_row_times_a_matrix_may_go_through_the_vector_engine() -> None:
    machine, dearer = load_machine("a100-sxm-80g", 1), load_machine("h100-sxm", 1)
    row = Problem(1, 512, 2048, float16)
    best = TUNER.tune(row, machine)
    assert best.tile.is_vector
    matrix = [tile for tile in tiles(row, machine.sip) if not tile.is_vector]
    assert best.kernel_us < 0.95 * min(TUNER.time_ps(row, item, machine) for item in matrix) / 1e6
    for problem, sip in ((Problem(8, 512, 2048, float16), machine.sip), (row, dearer.sip)):
        assert not any(tile.is_vector for tile in tiles(problem, sip))


@pytest.mark.parametrize("m", [1, 512])
def test_the_fastest_tiles_are_those_of_timing_all_of_them(m: int) -> None:
    problem, machine = Problem(m, 1024, 2048, bfloat16), load_machine("a100-sxm-80g", 1)
    every = list(tiles(problem, machine.sip))
    times = sorted(TUNER.time_ps(problem, tile, machine) for tile in every)
    tuner = TUNER.fastest(problem, machine, most=3)
    assert [item.kernel_us for item in tuner] == [time_ps / 1e6 for time_ps in times[:3]]
    slowest = max(every, key=lambda tile: TUNER.time_ps(problem, tile, machine))
    (only,) = TUNER.fastest(problem, machine, among=[slowest])
    assert only.tile == slowest


@pytest.mark.parametrize("name", ["a100-sxm-80g", "h200"])
@pytest.mark.parametrize("m", [256, 4096])
def test_the_bound_of_the_fastest_whole_tile_is_nearly_its_time(name: str, m: int) -> None:
    problem, machine = Problem(m, 4096, 4096, bfloat16), load_machine(name, 1)
    best = TUNER.tune(problem, machine)
    bound_us = GemmBounds(problem, machine.sip).least_ps(best.tile) / 1e6
    assert bound_us > 0.97 * best.kernel_us


def test_tiles_have_as_many_stages_as_fit_beside_the_registers() -> None:
    problem = Problem(4096, 4096, 4096, bfloat16)
    for name in ("a100-sxm-80g", "h100-sxm", "l40s"):
        pe = load_machine(name, 1).sip.pe
        for tile in tiles(problem, load_machine(name, 1).sip):
            stage = (tile.block_m + tile.columns) * tile.block_k * 2
            room = (pe.tcm_kib - pe.register_kib) * 1024
            assert 2 <= tile.num_stages <= 5
            assert tile.num_stages * stage <= room
            assert tile.num_stages == 5 or (tile.num_stages + 1) * stage > room


def test_tiles_that_are_no_power_of_two_wide_fill_waves() -> None:
    problem = Problem(512, 6144, 8192, float16)
    machine = load_machine("h100-sxm", 1)
    assert {tile.columns for tile in tiles(problem, machine.sip)} == {
        32,
        64,
        96,
        128,
        160,
        192,
        256,
    }
    # 128x192 takes one wave where tiles of 128 columns take two, and ones of 256 leave PEs idle.
    assert TUNER.tune(problem, machine).tile.columns == 192


@pytest.mark.adr("0029-D3")
def test_only_the_harness_knows_of_warm_weights() -> None:
    machine = load_machine("l40s", 1)
    loop = gemm_harness("aic-gemm", "l40s")
    small = 2 * 1024 * 1024
    assert dict(loop.cached(small, small, machine.sip)) == {0: 1, 1: 1}
    assert loop.cached(small, 100 * small, machine.sip) == ()
    assert KERNEL.cached(small, small, machine.sip) == ()
    problem = Problem(16, 1024, 1024, bfloat16)
    warm = TUNER.tune(
        problem, machine, loop.cached(problem.input_bytes, problem.weight_bytes, machine.sip)
    ).kernel_us
    assert warm <= TUNER.tune(problem, machine).kernel_us


def test_the_input_is_warm_if_every_buffer_fits_beside_it() -> None:
    sip = load_machine("h100-sxm", 1).sip
    assert sip.cache is not None
    held = int(sip.cache.capacity_mib * 2**20 * sip.cache.retained_share)
    weights = held // 12
    loop = gemm_harness("aic-gemm", "h100-sxm")
    assert dict(loop.cached(held - 6 * weights, weights, sip)) == {0: 1, 1: 1}
    assert dict(loop.cached(held - 6 * weights + 1, weights, sip)) == {1: 1}


def test_float32_is_not_computed_in_tf32() -> None:
    machine = load_machine("a100-sxm-80g", 1)
    best = TUNER.tune(Problem(512, 512, 512, float32), machine)
    peak = float(machine.sip.peak_flops_per_s("float32"))
    assert best.kernel_us >= 2 * 512**3 / peak * 1e6


def test_what_cannot_be_answered_says_why(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        "device,op,dtype,m,n,k,bytes,time_us,source\n"
        "V100-SXM2,gemm,bf16,64,64,64,1,10,mine\n"
        "V100-SXM2,gemm,bf8b,64,64,64,1,10,mine\n"
        "V100-SXM2,conv,fp16,64,64,64,1,10,mine\n"
        "V100-SXM2,gemm,fp16,64,64,64,1,10,mine\n"
    )
    predictor = make_predictor(Category.GEMM)
    assert isinstance(predictor, GemmPredictor)
    no_rate, no_dtype, no_op, known = (predictor.predict(row) for row in read_rows([path]))
    assert no_rate.why_not.startswith("the GEMM engine has no rate for bfloat16")
    assert no_dtype.why_not == "no library kernel for bf8b on v100"
    assert no_op.why_not == "no kernel for op conv"
    assert known.time_us is not None
    assert known.time_us > 3
