"""Launches of mixtures of experts against counts by hand and by brute force."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import KernelConstants, load_machine
from kernbench.library_kernels import ExpertTiles, LibraryKernel, time_kernel
from validation.kernels import ExpertLoad, MoeKernels, MoeProblem, expert_kernels, expert_products

TILES = ExpertTiles(name="test", row_tiles=(16, 64), columns=(32,), depth=64)
KERNELS = MoeKernels(products=TILES)
PLAIN = KernelConstants(source="assumed: a test")


def problem(*rows: int, tokens: int = 8, slots: int = 0) -> MoeProblem:
    load = ExpertLoad(rows=rows, tokens=tokens, routed=8 * tokens, slots=max(slots, sum(rows)))
    return MoeProblem(load=load, experts=8, hidden=256, inter=96)


def count(kernel: LibraryKernel) -> float:
    return sum(tile.count * tile.trips for tile in kernel.tiles)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=9))
def test_products_pad_the_rows_of_each_expert_to_whole_tiles(rows: list[int]) -> None:
    up, down = expert_products(problem(*rows), KERNELS)
    tile = 16 if sum(rows) / len(rows) <= 16 else 64
    tiles = sum(len(range(0, row, tile)) for row in rows)
    assert count(up) == tiles * (192 // 32) * (256 // 64)
    assert count(down) == tiles * (256 // 32) * 2  # 96 deep: two trips of 64.
    assert up.flops == count(up) * 2 * tile * 32 * 64


def test_weights_of_the_experts_with_rows_come_from_hbm() -> None:
    one, two = (
        sum(
            expert_product.hbm_read_bytes
            for expert_product in expert_products(problem(*rows), KERNELS)
        )
        for rows in ((8,), (4, 4))
    )
    assert two - one == 3 * 256 * 96 * 2


def test_weights_that_the_cache_keeps_do_not() -> None:
    kept = replace(problem(4, 4), cache_bytes=1e9)
    kernels = expert_kernels(kept, KERNELS)
    assert all(item.hbm_bytes == 0 for item in kernels)
    assert all(tiles.trip.missed == 0 for item in kernels for tiles in item.tiles)


def test_twice_what_the_cache_holds_all_comes_from_hbm() -> None:
    up, _ = expert_products(problem(16, 16), KERNELS)
    small = replace(problem(16, 16), cache_bytes=(up.hbm_bytes + 2 * 256 * 96 * 2) / 2)
    all_of_it = expert_products(small, KERNELS)[0].tiles[0].trip.missed
    half = replace(small, cache_bytes=small.cache_bytes * 4 / 3)
    missed = expert_products(half, KERNELS)[0].tiles[0].trip.missed
    assert missed == pytest.approx(all_of_it / 2)


def test_trips_wait_for_hbm_where_they_are_the_first_to_load_their_bytes() -> None:
    # Each of 6 tiles of 32 columns loads the rows again; 64 rows of 16 are 4 tiles that load
    # the weights again.
    for rows, tiles in ((16, 1), (64, 4)):
        kernels = KERNELS.with_tiles(row_tiles=(16,))
        (tile,) = expert_products(problem(rows), kernels)[0].tiles
        distinct = (192 + rows) * 256 * 2
        loaded = tiles * 6 * (16 + 32) * 256 * 2
        assert tile.trip.missed == pytest.approx(distinct / loaded)


def test_experts_without_a_gate_have_one_up_projection() -> None:
    gated = expert_products(problem(5), KERNELS)
    plain = expert_products(replace(problem(5), gated=False), KERNELS)
    assert plain[0].flops * 2 == gated[0].flops
    assert plain[1].flops == gated[1].flops


def test_rows_of_other_ranks_are_written_and_not_multiplied() -> None:
    alone = expert_products(problem(5), KERNELS)
    zeroed = expert_products(problem(5, slots=64), KERNELS)
    for before, after in zip(alone, zeroed, strict=True):
        assert after.flops == before.flops
        assert after.hbm_written_bytes > before.hbm_written_bytes
        assert after.num_tiles > before.num_tiles


def test_one_kernel_has_the_tiles_of_both_products() -> None:
    two = expert_products(problem(5, 7), KERNELS)
    (one,) = expert_products(problem(5, 7), replace(KERNELS, one_kernel=True))
    assert one.flops == pytest.approx(sum(item.flops for item in two))
    assert one.hbm_written_bytes == two[1].hbm_written_bytes


def test_steps_have_constants_of_their_own_and_pipelines_run_ahead() -> None:
    kernels = replace(KERNELS.with_tiles(pipelined=True), copies_rows=True, steps="own")
    result = expert_kernels(problem(5), kernels)
    names = ["own_expand", "test", "own_activate", "test", "own_sum"]
    assert [item.name for item in result] == names
    assert all(item.tiles[0].trip.pipelined for item in result if item.name == "test")


def test_a_rank_without_rows_still_routes() -> None:
    (only,) = expert_kernels(problem(), replace(KERNELS, routing="sort"))
    assert (only.name, only.hbm_bytes) == ("sort", 0)


def test_routing_goes_over_the_choices_of_all_tokens() -> None:
    few, many = (
        expert_kernels(problem(5, tokens=tokens), replace(KERNELS, routing="sort"))[0]
        for tokens in (128, 1280)
    )
    assert (count(few), count(many)) == (1, 10)


def test_a_block_for_each_expert_and_some_tokens_sorts() -> None:
    kernels = replace(KERNELS, routing="route", sorting="sort")
    value = replace(problem(5, tokens=640), choices=8)
    route, sort = expert_kernels(value, kernels)[:2]
    assert (route.name, count(route)) == ("route", 0)
    # Ten blocks of 64 tokens for each of 8 experts.
    assert (sort.name, sort.num_tiles) == ("sort", 80)


@pytest.mark.parametrize(("in_steps", "trips"), [(False, 1), (True, 8)])
def test_experts_are_chosen_by_a_block_for_each_token(in_steps: bool, trips: int) -> None:
    kernels = replace(KERNELS, choosing="choose", chooses_in_steps=in_steps)
    value = replace(problem(5, tokens=100), all_experts=256, choices=8)
    choose = expert_kernels(value, kernels)[0]
    assert (choose.name, choose.num_tiles, count(choose)) == ("choose", 100, 100 * trips)


def test_stripes_leave_no_pe_without_work() -> None:
    plain, dealt = (
        expert_products(replace(problem(5), pes=10), KERNELS.with_tiles(striped=flag, resident=1))
        for flag in (False, True)
    )
    for before, after in zip(plain, dealt, strict=True):
        assert after.num_tiles == 10
        assert after.flops == pytest.approx(before.flops)
        assert after.port_bytes == pytest.approx(before.port_bytes)


def test_tiles_are_narrow_where_wide_ones_leave_pes_idle() -> None:
    kernels = KERNELS.with_tiles(columns=(64, 32))
    wide, narrow = (expert_products(replace(problem(5), pes=pes), kernels)[0] for pes in (3, 4))
    assert (wide.num_tiles, narrow.num_tiles) == (3, 6)


@given(st.integers(1, 5000), st.integers(1, 64))
def test_more_rows_never_take_less_time(rows: int, more: int) -> None:
    sip = load_machine("h200").sip
    kernels = KERNELS.with_tiles(row_tiles=(64,))
    times = [
        sum(
            time_kernel(expert_product, sip, PLAIN).total_us
            for expert_product in expert_products(problem(*([number] * 4)), kernels)
        )
        for number in (rows, rows + more)
    ]
    assert times[1] >= times[0] * (1 - 1e-9)
