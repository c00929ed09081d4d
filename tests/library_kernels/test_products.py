"""Matrix products of vendors' libraries: bounds of their time, split-K, products with one row."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import MachineError
from kernbench.hardware import load_library, load_machine
from kernbench.library_kernels import (
    CUTLASS,
    ExpertProduct,
    Product,
    expert_product,
    grouped_kernels,
    product_kernels,
    time_kernel,
)
from validation import kernels as stacks

SIP = load_machine("a100-sxm-80g").sip
LIBRARY = load_library("sm80")


def time_us(product: Product) -> float:
    return product_kernels(product, SIP, LIBRARY).total_us


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 20000), st.integers(1, 40))
def test_no_product_beats_the_machine(m: int, n: int, k: int, batch: int) -> None:
    product = Product(m=m, n=n, k=k, batch=batch)
    peak_us = 2.0 * m * n * k * batch / (2048 * 108 * 1410)
    bytes_us = sum(product.distinct) / 2039e3
    assert time_us(product) >= max(peak_us, bytes_us) * (1 - 1e-9)
    assert time_us(product) < 60 * max(peak_us, bytes_us) + 60


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 4000))
def test_flops_and_bytes_cover_the_product(m: int, n: int, k: int) -> None:
    main = product_kernels(Product(m=m, n=n, k=k), SIP, LIBRARY).kernels[0]
    assert main.flops == 0 if main.name == "blas_vector" else main.flops >= 2 * m * n * k
    assert main.hbm_read_bytes >= 2 * k * (m + n)


def test_a_long_k_with_few_tiles_is_split_and_added_up() -> None:
    chosen = product_kernels(Product(m=64, n=64, k=65536), SIP, LIBRARY)
    assert [kernel.name for kernel in chosen.kernels] == ["blas_half", "blas_sum_parts"]
    assert chosen.kernels[0].num_tiles > 1
    batched = product_kernels(Product(m=64, n=64, k=65536, batch=200), SIP, LIBRARY)
    assert len(batched.kernels) == 1


def test_few_columns_of_millions_of_rows_keep_all_pes_busy() -> None:
    k = 9834496
    chosen = product_kernels(Product(m=4, n=4, k=k), SIP, LIBRARY)
    assert chosen.kernels[0].num_tiles > 108
    # Padding makes its rows sixteen times as long as they are.
    assert chosen.total_us < 16 * 2 * 2 * 4 * k / 2039e3
    shorter = product_kernels(Product(m=4, n=4, k=65536), SIP, LIBRARY)
    assert shorter.kernels[0].num_tiles <= 16


def test_two_sms_make_a_block_and_load_one_operand_between_them() -> None:
    b200 = load_machine("b200")
    chosen = product_kernels(Product(m=8192, n=8192, k=8192), b200.sip, load_library("sm100"))
    (tiles,) = chosen.kernels[0].tiles
    # Of the 2 x 128 x 256 elements of a step's rows and columns, an SM loads its rows and half of
    # the columns, or the other way round.
    assert tiles.trip.loaded_bytes == 2 * (128 + 128) * 64
    assert tiles.count * 128 * 256 == 8192 * 8192
    # github.com/zzc0721/torch-performance-test-data, database.md: 1,628 to 1,696 TFLOP/s at best.
    assert 2 * 8192**3 / chosen.total_us / 1e6 == pytest.approx(1660, rel=0.06)


@pytest.mark.parametrize(
    ("machine", "dtype", "itemsize", "best"),
    [
        ("b200", "float32", 4, 66.2),
        ("h100-sxm", "bfloat16", 2, 797),
        ("a100-sxm-80g", "bfloat16", 2, 264),
        ("rtx-4090", "bfloat16", 2, 165),
        ("rtx-pro-6000", "bfloat16", 2, 418),
        ("l40s", "float32", 4, 46.9),
        ("h100-pcie", "float32", 4, 37.0),
    ],
)
def test_the_best_square_product_is_that_of_strangers(
    machine: str, dtype: str, itemsize: int, best: float
) -> None:
    """The fastest of five sizes, as people sent them in (zzc0721/torch-performance-test-data)."""
    described = load_machine(machine)
    library = load_library(described.spec.kernel_library or "")
    reached = max(
        2
        * n**3
        / product_kernels(
            Product(
                m=n, n=n, k=n, dtype=dtype, itemsize=itemsize, out_bytes=itemsize, along_k=False
            ),
            described.sip,
            library,
        ).total_us
        / 1e6
        for n in (1024, 2048, 4096, 8192, 10240)
    )
    assert reached == pytest.approx(best, rel=0.1)


def tflops_of(machine: str, m: int, n: int, k: int, along_k: bool) -> float:
    """Return what a product of float32 reaches on a board."""
    described = load_machine(machine)
    product = Product(m=m, n=n, k=k, dtype="float32", itemsize=4, out_bytes=4, along_k=along_k)
    library = load_library(described.spec.kernel_library or "")
    return 2 * m * n * k / product_kernels(product, described.sip, library).total_us / 1e6


@pytest.mark.parametrize(
    ("machine", "along", "rows"), [("l40s", 32, 42), ("l4", 9.3, 12.5), ("rtx-a6000", 17.5, 21)]
)
def test_operands_along_k_cost_a_board_with_a_low_limit_more(
    machine: str, along: float, rows: float
) -> None:
    """KernelBench level1/17 and 10: 2048 x 4096 x 8192 of A and B's transpose, and rows of both."""
    assert tflops_of(machine, 2048, 4096, 8192, True) == pytest.approx(along, rel=0.1)
    assert tflops_of(machine, 16384, 768, 2048, False) == pytest.approx(rows, rel=0.13)


@pytest.mark.parametrize("machine", ["a100-sxm-80g", "h100-sxm", "b200"])
def test_a_board_below_its_limit_takes_as_long_for_both(machine: str) -> None:
    assert tflops_of(machine, 4096, 4096, 4096, True) == tflops_of(machine, 4096, 4096, 4096, False)


def test_short_products_of_float32_meet_the_limit_at_once() -> None:
    """KernelBench level1/17 on an L40S: 0.54 and 4.26 ms are 32 TFLOP/s both."""
    short, long = (
        tflops_of("l40s", 1024, 2048, 4096, True),
        tflops_of("l40s", 2048, 4096, 8192, True),
    )
    assert short == pytest.approx(long, rel=0.05)


def test_float32_with_few_rows_takes_small_tiles() -> None:
    # ViT-Base at batch 1: with tiles of 128 x 128, 12 of 108 PEs have work.
    result = time_us(Product(m=197, n=768, k=768, dtype="float32", itemsize=4, out_bytes=4))
    whole_tiles_us = 768 * 128 * 128 / 64 / 1410
    assert result < whole_tiles_us / 2


def test_tf32_is_several_times_faster_than_float32() -> None:
    sizes: dict[str, Any] = {"m": 4096, "n": 4096, "k": 4096, "itemsize": 4, "out_bytes": 4}
    ratio = time_us(Product(dtype="float32", **sizes)) / time_us(Product(dtype="tf32", **sizes))
    assert ratio == pytest.approx(8, rel=0.2)


def test_what_a_cache_holds_is_not_read_again() -> None:
    cold = Product(m=8, n=4096, k=4096)
    warm = Product(m=8, n=4096, k=4096, b_cold=0.0)
    busy_us = [
        sum(time.total_us - time.start_us for time in product_kernels(product, SIP, LIBRARY).times)
        for product in (warm, cold)
    ]
    assert busy_us[0] < busy_us[1] / 1.5


def test_rows_that_lanes_cannot_load_16_bytes_of_take_longer() -> None:
    # A vocabulary of 50257: rows of 2 bytes' alignment. nanoGPT's commit 77e7e04 measured a step
    # of 12 x 1024 tokens to be a quarter faster with 50304.
    wide = Product(m=12288, n=768, k=50257)
    times = [time_us(dataclasses.replace(wide, access_bytes=number)) for number in (16, 8, 4, 2)]
    assert times == sorted(times)
    assert 2 < times[-1] / times[0] < 4
    single = dataclasses.replace(wide, dtype="float32", itemsize=4, out_bytes=4)
    assert time_us(single) == time_us(dataclasses.replace(single, access_bytes=4))


@pytest.mark.parametrize("machine", ["v100", "a100-sxm-80g", "h100-sxm", "b200"])
def test_small_float32_products_take_what_few_steps_take(machine: str) -> None:
    loaded = load_machine(machine)
    assert loaded.spec.kernel_library is not None
    library = load_library(loaded.spec.kernel_library)

    def took_us(rows: int, size: int) -> float:
        product = Product(m=rows, n=size, k=size, dtype="float32", itemsize=4, out_bytes=4)
        return product_kernels(product, loaded.sip, library).total_us

    trip_us = float(library.constants("blas_float32").trip_ns) / 1e3
    for rows in (16, 64, 128):
        # A quarter of the steps that a tile takes whose warps do not share them, and 6 us beside.
        assert took_us(rows, 256) < 256 / 8 / 4 * trip_us + 6
        assert took_us(rows, 256) < took_us(rows, 512) < 1.5 * took_us(rows, 1024)


def grouped_us(machine: str, *products: Product) -> float:
    loaded = load_machine(machine)
    assert loaded.spec.kernel_library is not None
    library = load_library(loaded.spec.kernel_library)
    (launch,) = grouped_kernels(products, loaded.sip, library).times
    return launch.total_us


@pytest.mark.adr("0064-D9")
def test_groups_of_one_size_take_the_time_of_a_batch() -> None:
    batch = Product(batch=16, m=512, n=4096, k=2048)
    apart = [dataclasses.replace(batch, batch=number) for number in (1, 5, 10)]
    assert grouped_us("h100-sxm", *apart) == pytest.approx(grouped_us("h100-sxm", batch))


def skewed(rows: int, groups: int) -> list[int]:
    """Return rows of groups that fall with the power of 1.2 of their number."""
    shares = [(index + 1) ** -1.2 for index in range(groups)]
    ints = [int(rows * share / sum(shares)) for share in shares]
    return [ints[0] + rows - sum(ints), *ints[1:]]


@pytest.mark.adr("0064-D9")
@pytest.mark.parametrize("machine", ["h100-sxm", "h200"])
@pytest.mark.parametrize("rows", [512, 8192, 65536])
def test_skewed_groups_take_about_the_time_of_a_serving_stacks_experts(
    machine: str, rows: int
) -> None:
    # CUTLASS's kernel of experts, which was fitted to measured balanced and power-law loads.
    groups, k, n = 16, 2048, 4096
    loaded = load_machine(machine)
    assert loaded.spec.kernel_library is not None
    library = stacks.load_library(loaded.spec.kernel_library)
    tiles = dataclasses.replace(CUTLASS, name="cutlass_moe_bf16")

    def experts_us(sizes: list[int]) -> float:
        product = ExpertProduct(rows=tuple(sizes), columns=n, depth=k, pes=loaded.sip.num_pes)
        up = expert_product(product, tiles)
        return time_kernel(up, loaded.sip, library.constants(up.name)).total_us

    def ours_us(sizes: list[int]) -> float:
        return grouped_us(machine, *(Product(m=size, n=n, k=k) for size in sizes))

    even, uneven = [rows // groups] * groups, skewed(rows, groups)
    assert 0.7 < ours_us(uneven) / experts_us(uneven) < 1.3
    slower, of_experts = ours_us(uneven) / ours_us(even), experts_us(uneven) / experts_us(even)
    assert slower >= 1
    assert slower == pytest.approx(of_experts, abs=0.15)


@pytest.mark.parametrize(
    ("machine", "m", "n", "k", "measured_us"),
    [
        ("h100-sxm", 32768, 32768, 32, 2590), ("h100-sxm", 256, 256, 524288, 1300),
        ("h100-sxm", 16384, 768, 2048, 1040), ("l40s", 2048, 4096, 8192, 4260),
        ("l4", 2048, 4096, 8192, 16100), ("rtx-a6000", 2048, 4096, 8192, 7840),
    ],
)  # fmt: skip
def test_float32_products_take_as_long_as_measured(
    machine: str, m: int, n: int, k: int, measured_us: float
) -> None:
    """KernelBench level1/9, 6, 10 and 17 at 6e6fca9c, 4082b873, 15c880c7 and 7c914ea7.

    Boards of 72 to 350 W slow down under float32, each at its own limit.
    """
    product = Product(m=m, n=n, k=k, dtype="float32", itemsize=4, out_bytes=4)
    loaded = load_machine(machine, 1)
    chosen = product_kernels(product, loaded.sip, load_library(loaded.spec.kernel_library or ""))
    assert chosen.total_us == pytest.approx(measured_us, rel=0.1)


def test_a_float32_product_of_short_k_multiplies_and_then_stores() -> None:
    product = Product(m=32768, n=32768, k=32, dtype="float32", itemsize=4, out_bytes=4)
    time_ = product_kernels(product, SIP, LIBRARY).times[0]
    assert time_.tiles_us >= time_.tensor_us + product.distinct[2] / 2039e3


def test_a_long_k_fills_all_pes_with_as_many_tiles_as_they_hold() -> None:
    product = Product(m=256, n=256, k=131072, dtype="float32", itemsize=4, out_bytes=4)
    main = product_kernels(product, SIP, LIBRARY).kernels[0]
    assert SIP.num_pes * (main.resident - 1) < main.num_tiles <= SIP.num_pes * main.resident


@pytest.mark.parametrize("machine", ["h100-sxm", "h100-pcie"])
def test_float32_on_hopper_takes_whole_waves_of_two_tiles_a_pe(machine: str) -> None:
    loaded = load_machine(machine, 1)
    library, slots = load_library(loaded.spec.kernel_library or ""), 2 * loaded.sip.num_pes

    def took_us(tiles: int) -> float:
        product = Product(m=128 * tiles, n=128, k=8192, dtype="float32", itemsize=4, out_bytes=4)
        return product_kernels(product, loaded.sip, library).total_us

    # One tile more than a wave takes as long as two waves, but for a clock that heat lowers.
    assert took_us(slots + 1) == pytest.approx(2 * took_us(slots), rel=0.1)
    assert took_us(2 * slots) == pytest.approx(took_us(slots + 1), rel=0.02)


@pytest.mark.parametrize("machine", ["a100-sxm-80g", "h100-sxm"])
def test_groups_of_float32_have_the_same_tiles_to_choose_from(machine: str) -> None:
    small, large = (
        Product(m=rows, n=2048, k=512, dtype="float32", itemsize=4, out_bytes=4)
        for rows in (16, 8192)
    )
    assert grouped_us(machine, small, large) > grouped_us(machine, small)


def test_without_a_kernel_that_does_the_work_the_library_is_named() -> None:
    with pytest.raises(MachineError, match="no kernel of sm80 can do what is asked for"):
        grouped_kernels([], SIP, LIBRARY)
