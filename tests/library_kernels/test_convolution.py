"""Convolutions of cuDNN: their arithmetic against closed forms, layouts, and which way is taken."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernbench.hardware import KernelLibrary, load_library, load_machine
from kernbench.library_kernels import (
    Convolution,
    ConvolutionPass,
    KernelChoice,
    convolution_kernels,
)

SIP = load_machine("a100-sxm-80g").sip
LIBRARY = load_library("sm80")
PLAIN = Convolution(
    in_channels=128, out_channels=256, in_positions=64 * 28 * 28, out_positions=64 * 28 * 28, taps=9
)

TO_INPUT = ConvolutionPass.TO_INPUT


def chosen(convolution: Convolution) -> KernelChoice:
    return convolution_kernels(convolution, SIP, LIBRARY)


def flops(convolution: Convolution) -> float:
    return sum(kernel.flops for kernel in chosen(convolution).kernels)


@pytest.mark.adr("0128-D7")
@given(
    st.integers(1, 300), st.integers(1, 300), st.integers(2, 30000), st.sampled_from([1, 9, 49]),
    st.sampled_from(ConvolutionPass),
)  # fmt: skip
def test_a_convolution_does_at_least_its_products(
    channels: int, outputs: int, positions: int, taps: int, which: ConvolutionPass
) -> None:
    convolution = Convolution(
        in_channels=channels, out_channels=outputs, in_positions=positions, out_positions=positions,
        taps=taps, unit_stride=False, which=which,
    )  # fmt: skip
    if outputs > 1 and channels * taps > 1:
        assert flops(convolution) >= 2 * channels * outputs * positions * taps


def moves(choice: KernelChoice) -> int:
    return sum(kernel.name.startswith("conv_rearrange") for kernel in choice.kernels)


def without(*kernels: str) -> KernelLibrary:
    families = {
        name: family.model_copy(
            update={"kernels": {k: v for k, v in family.kernels.items() if k not in kernels}}
        )
        for name, family in LIBRARY.families.items()
    }
    return KernelLibrary(LIBRARY.architecture, families)


@pytest.mark.adr("0128-D8")
def test_matrix_engines_rearrange_planar_images_and_float32_those_that_are_not() -> None:
    library = without("conv_half_planar")

    def found(convolution: Convolution) -> int:
        return moves(convolution_kernels(convolution, SIP, library))

    exact = replace(PLAIN, dtype="float32", itemsize=4)
    assert [found(plain) for plain in (PLAIN, replace(PLAIN, planar=True))] == [0, 2]
    assert [found(item) for item in (exact, replace(exact, planar=True))] == [2, 0]


def test_amperes_kernels_of_tf32_make_planes_of_their_results_on_hopper_too() -> None:
    def on(machine: str, library: str) -> KernelChoice:
        return convolution_kernels(planar, load_machine(machine).sip, load_library(library))

    planar = replace(PLAIN, dtype="tf32", itemsize=4, planar=True)
    changes: list[dict[str, Any]] = [{}, {"by_graph": False}, {"which": TO_INPUT}, {"dims": 3}]
    chosens = [chosen(replace(planar, **change)) for change in changes]
    later = [on("h100-sxm", "sm90"), on("b200", "sm100")]
    assert [moves(item) for item in (*chosens, *later)] == [1, 2, 2, 2, 1, 2]
    # Storing planes comes after the loop of a tile: parts of the time add up, if not wholly.
    alone, stored = chosen(replace(planar, planar=False)), chosens[0]
    move_us = 2 * planar.in_bytes / 2.039e6 / 0.8
    assert alone.total_us < stored.total_us - move_us < alone.total_us * 3 ** (1 / 3)


@pytest.mark.parametrize(("channels", "name"), [(3, "float32"), (8, "float32"), (16, "tf32")])
def test_planes_of_few_channels_are_multiplied_in_float32_as_they_are(
    channels: int, name: str
) -> None:
    picture = replace(PLAIN, in_channels=channels, dtype="tf32", itemsize=4, planar=True)
    choice = chosen(picture)
    assert choice.kernels[-1].name == f"conv_{name}"
    assert moves(choice) == (name == "tf32")
    assert chosen(replace(picture, planar=False)).kernels[-1].name == "conv_tf32"


def test_planes_are_multiplied_in_float32_where_rearranging_them_costs_more() -> None:
    """One tap that makes few channels of many, as a network's reductions do."""
    positions = 10 * 224 * 224
    planes = Convolution(
        in_channels=480, out_channels=16, in_positions=positions, out_positions=positions, taps=1,
        planar=True, dtype="tf32", itemsize=4,
    )  # fmt: skip
    few = chosen(planes)
    assert not moves(few)
    # Rearranged, they would cross memory three times before the first product.
    assert few.total_us < 3 * planes.in_bytes / 2.039e6 / 0.85
    # Nine taps of as many channels as they make are worth it.
    assert moves(chosen(replace(planes, out_channels=480, taps=9))) == 1
    # Version 7's calls do not go to it (EfficientNets with PyTorch 1.9, too fast without it, too),
    # and a gradient has no such kernel.
    assert moves(chosen(replace(planes, by_graph=False)))
    assert moves(chosen(replace(planes, which=TO_INPUT)))


@pytest.mark.parametrize(
    ("changes", "is_planar"),
    [
        ({}, True),
        ({"which": TO_INPUT}, True),
        ({"which": TO_INPUT, "strided": True}, False),
        ({"in_channels": 64}, False),
        ({"dims": 3}, False),
    ],
)
def test_ada_has_a_kernel_that_takes_planes_of_up_to_32_channels(
    changes: dict[str, Any], is_planar: bool
) -> None:
    planes = replace(
        PLAIN, **{"in_channels": 32, "dtype": "tf32", "itemsize": 4, "planar": True, **changes}
    )
    choice = convolution_kernels(planes, load_machine("l40s").sip, load_library("sm89"))
    assert choice.kernels[-1].name == ("conv_tf32_planar" if is_planar else "conv_tf32")
    assert (moves(choice) == 0) == is_planar


@given(
    st.sampled_from(["h100-sxm", "a100-sxm-80g", "l40s", "b200"]),
    st.sampled_from([("float32", 4), ("tf32", 4), ("float16", 2)]),
    st.sampled_from([(1, 1), (3, 16), (32, 64), (48, 48), (512, 512)]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(ConvolutionPass),
    st.booleans(),
    st.booleans(),
)
@example("l40s", ("tf32", 4), (32, 64), 2, ConvolutionPass.FORWARD, False, True)
def test_every_convolution_has_a_kernel(
    machine: str,
    element: tuple[str, int],
    channels: tuple[int, int],
    dims: int,
    which: ConvolutionPass,
    planar: bool,
    by_graph: bool,
) -> None:
    dtype, itemsize = element
    convolution = replace(
        PLAIN, in_channels=channels[0], out_channels=channels[1], dims=dims, which=which,
        dtype=dtype, itemsize=itemsize, planar=planar, by_graph=by_graph,
    )  # fmt: skip
    spec = load_machine(machine)
    library = load_library(spec.spec.kernel_library or "")
    assert convolution_kernels(convolution, spec.sip, library).total_us > 0


def test_a_gradient_makes_no_image_of_the_phases_that_no_window_reaches() -> None:
    whole = replace(
        PLAIN, in_channels=64, out_channels=32, out_positions=PLAIN.in_positions // 2, taps=3,
        unit_stride=False, dtype="tf32", itemsize=4, planar=True, strided=True, which=TO_INPUT,
    )  # fmt: skip
    choices = [chosen(replace(whole, reached=share)) for share in (1.0, 0.5)]
    written = [choice.kernels[-1].hbm_written_bytes for choice in choices]
    assert written == [whole.in_bytes, whole.in_bytes / 2]
    (*_, together), (*_, half) = [choice.kernels[:-1] for choice in choices]
    assert half.hbm_read_bytes == together.hbm_read_bytes / 2
    assert half.hbm_written_bytes == together.hbm_written_bytes == whole.in_bytes


@pytest.mark.parametrize(
    ("machine", "library", "channels", "made", "rows", "taps", "measured_ms"),
    [
        ("h100-sxm", "sm90", 64, 128, 32 * 131070, 3, 2.63),  # level1/67 at 6e6fca9c
        ("h100-sxm", "sm90", 32, 64, 8 * 508 * 504, 45, 2.43),  # level1/62
        ("h100-pcie", "sm90", 16, 128, 16 * 1022 * 1022, 9, 10.1),  # level1/63 at 3396fc0c
        ("l40s", "sm89", 32, 64, 8 * 508 * 504, 45, 17.3),  # level1/62 at 4082b873
        ("a100-sxm-80g", "sm80", 3, 64, 16 * 254 * 252, 15, 0.55),  # level1/62 at 80c03d44
    ],
)
def test_planes_of_float32_take_as_long_as_measured(
    machine: str, library: str, channels: int, made: int, rows: int, taps: int, measured_ms: float
) -> None:
    """Convolutions alone of KernelBench, eager."""
    planes = replace(
        PLAIN, in_channels=channels, out_channels=made, in_positions=rows, out_positions=rows,
        taps=taps, unit_stride=False, dtype="tf32", itemsize=4, planar=True,
    )  # fmt: skip
    choice = convolution_kernels(planes, load_machine(machine).sip, load_library(library))
    assert choice.total_us / 1e3 == pytest.approx(measured_ms, rel=0.15)


def test_a_planar_image_is_taken_as_it_is_where_that_is_faster() -> None:
    """The oracle: the same choice without the kernels that take such images."""
    seen = set()
    # Of few channels, rearranging is most of the work; of many, a fast product pays for it.
    for channels in (16, 64, 256, 1024, 4096):
        planar = replace(PLAIN, in_channels=channels, out_channels=channels, planar=True)
        result = chosen(planar)
        moved = convolution_kernels(planar, SIP, without("conv_half_planar"))
        assert result.total_us <= moved.total_us
        assert result.total_us >= chosen(replace(planar, planar=False)).total_us
        seen.add(moves(result))
    assert seen == {0, 2}


@pytest.mark.parametrize(("width", "is_moved"), [(4, False), (8, True), (16, False)])
def test_planes_of_groups_of_eight_are_rearranged(width: int, is_moved: bool) -> None:
    channels = 48 * width
    grouped = replace(PLAIN, in_channels=channels, out_channels=channels, groups=48, planar=True)
    assert (moves(of_rtx_3090(grouped)) == 2) == is_moved


def test_groups_of_odd_widths_run_on_the_vector_engine_channels_last() -> None:
    def name(width: int, **changes: Any) -> str:
        groups = replace(PLAIN, in_channels=width * 8, out_channels=width * 8, groups=8)
        return chosen(replace(groups, **changes)).kernels[-1].name

    assert [name(number) for number in (16, 24, 32, 56, 128)] == [
        "conv_half", "conv_grouped_last", "conv_half", "conv_grouped_last", "conv_half"
    ]  # fmt: skip
    for which in (ConvolutionPass.TO_INPUT, ConvolutionPass.TO_WEIGHT):
        assert name(16, which=which) == "conv_grouped_gradient_last"
    # Those of gradients take 32 groups and more, or whole sets of 32 channels of narrow ones.
    gradient = replace(PLAIN, which=ConvolutionPass.TO_INPUT)
    several = ((16, 32, True), (16, 40, True), (16, 18, False), (8, 24, True), (8, 7, False))
    for width, count, is_product in (*several, (48, 8, True), (56, 8, False)):
        channels = width * count
        grouped = replace(gradient, in_channels=channels, out_channels=channels, groups=count)
        result = chosen(grouped).kernels[-1].name
        assert result == ("conv_half" if is_product else "conv_grouped_gradient_last")
    assert name(24, planar=True) in ("conv_half", "conv_half_planar")
    assert name(24, dtype="float32", itemsize=4) == "conv_float32"


def test_gradients_of_few_groups_are_slower_in_planes_too() -> None:
    sip, library = load_machine("rtx-3090").sip, load_library("sm86")

    def found(width: int, count: int, which: ConvolutionPass) -> KernelChoice:
        channels = width * count
        grouped = replace(
            PLAIN, in_channels=channels, out_channels=channels, groups=count, planar=True
        )
        return convolution_kernels(replace(grouped, which=which), sip, library)

    for which in ConvolutionPass:
        few, many = found(16, 16, which), found(16, 32, which)
        is_slower = few.kernels[-1].name == "conv_half_grouped_gradient"
        assert is_slower == (which is not ConvolutionPass.FORWARD)
        # Half of the channels.
        assert (few.total_us > 0.9 * many.total_us) == is_slower


RTX_3090 = load_machine("rtx-3090").sip


def of_rtx_3090(convolution: Convolution) -> KernelChoice:
    return convolution_kernels(convolution, RTX_3090, load_library("sm86"))


def test_groups_that_make_unlike_many_channels_are_launched_one_by_one() -> None:
    pictures = 512
    one = Convolution(in_channels=192, out_channels=1152, in_positions=49, out_positions=49, taps=1)
    alone = of_rtx_3090(replace(one, planar=True)).total_us
    channels: dict[str, Any] = {"in_channels": 192 * pictures, "out_channels": 1152 * pictures}
    rtx_3090 = of_rtx_3090(replace(one, groups=pictures, planar=True, **channels))
    # Every launch but the first finds the queue running.
    assert 0.7 * alone * pictures < rtx_3090.total_us < 1.01 * alone * pictures
    assert len(rtx_3090.times) >= pictures
    alike: dict[str, Any] = {"in_channels": 1152 * pictures, "out_channels": 1152 * pictures}
    assert len(of_rtx_3090(replace(one, groups=pictures, planar=True, **alike)).times) < 8


def test_a_plain_product_that_makes_odd_rows_of_even_ones_is_slow_channels_last() -> None:
    plain = replace(PLAIN, in_channels=1024, out_channels=2053, taps=1, unit_stride=False)
    odd = of_rtx_3090(plain)
    assert odd.kernels[0].name == "conv_half_odd"
    assert odd.total_us > 4 * of_rtx_3090(replace(plain, out_channels=2056)).total_us
    # Of more taps, of odd rows too, of planes, and as a gradient of even widths, it is not.
    others: list[dict[str, Any]] = [
        {"taps": 9}, {"in_channels": 1025}, {"planar": True}, {"which": TO_INPUT},
        {"by_graph": False},
    ]  # fmt: skip
    for changes in others:
        names = [kernel.name for kernel in of_rtx_3090(replace(plain, **changes)).kernels]
        assert "conv_half_odd" not in names
    turned = replace(plain, in_channels=2053, out_channels=1024, which=TO_INPUT)
    assert of_rtx_3090(turned).kernels[0].name == "conv_half_odd"


def test_earlier_releases_pad_channels_and_have_fewer_kernels_of_groups() -> None:
    def pads(number: int, result: int, **changes: Any) -> int:
        early = replace(PLAIN, in_channels=number, out_channels=result, by_graph=False)
        return moves(of_rtx_3090(replace(early, **changes)))

    assert [pads(*item) for item in ((64, 64), (42, 64), (42, 84), (3, 64))] == [0, 1, 2, 0]
    assert pads(42, 84, by_graph=True) == 0

    def grouped(width: int, count: int, by_graph: bool) -> KernelChoice:
        channels = width * count
        plain = replace(
            PLAIN, in_channels=channels, out_channels=channels, groups=count, by_graph=by_graph
        )
        return of_rtx_3090(plain)

    for width in (16, 64):
        assert grouped(width, 8, True).kernels[0].name == "conv_half"
        assert grouped(width, 8, False).kernels[0].name == "conv_grouped_last_before"
        assert grouped(width, 32, False).kernels[0].name == "conv_half"
    now, before = (grouped(24, 8, by_graph) for by_graph in (True, False))
    assert before.total_us > 1.3 * now.total_us


def test_wide_groups_fill_up_tiles_and_dilated_ones_have_no_kernel_of_gradients() -> None:
    def grouped(width: int, **changes: Any) -> KernelChoice:
        plain = replace(PLAIN, in_channels=8 * width, out_channels=8 * width, groups=8)
        return of_rtx_3090(replace(plain, **changes))

    assert grouped(56).kernels[0].name == "conv_grouped_last"
    assert grouped(373).kernels[0].name == "conv_half"
    assert grouped(373).total_us == pytest.approx(grouped(384).total_us, rel=0.1)
    many = replace(
        PLAIN, in_channels=128, out_channels=128, groups=32, which=TO_INPUT, unit_stride=False
    )
    assert of_rtx_3090(many).kernels[0].name == "conv_half"
    dilated = of_rtx_3090(replace(many, dilated=True))
    assert dilated.kernels[0].name == "conv_grouped_gradient_last"


@pytest.mark.parametrize("architecture", ["sm86", "sm120"])
def test_one_channel_of_planes_needs_no_matrix_engine(architecture: str) -> None:
    machine = load_machine({"sm86": "rtx-3090", "sm120": "rtx-pro-6000-max-q"}[architecture])
    positions = 2048 * 16 * 16
    one = replace(
        PLAIN, in_channels=512, out_channels=1, in_positions=positions, out_positions=positions
    )
    one = replace(one, taps=1, unit_stride=False, planar=True)
    kernels = convolution_kernels(one, machine.sip, load_library(architecture))
    assert (
        kernels.total_us
        < 2.5 * (512 + 1) * 2 * positions / float(machine.sip.cube.hbm_bandwidth_gbps) / 1e3
    )


@pytest.mark.adr("0128-D7")
def test_winograd_saves_multiplications_of_float32_where_it_can() -> None:
    exact = replace(PLAIN, dtype="float32", itemsize=4, planar=True)
    assert {kernel.name for kernel in chosen(exact).kernels} == {"conv_winograd"}
    strided = replace(exact, unit_stride=False)
    assert chosen(exact).total_us < chosen(strided).total_us
    assert flops(exact) < 2 * 128 * 256 * PLAIN.out_positions * 9


@pytest.mark.adr("0128-D7")
def test_a_channel_by_itself_needs_no_matrix_engine() -> None:
    depthwise = replace(PLAIN, out_channels=128, groups=128)
    (kernel,) = chosen(depthwise).kernels
    assert not kernel.flops
    work = sum(tile.count * tile.trips * tile.trip.simple for tile in kernel.tiles)
    assert work == pytest.approx(128 * PLAIN.out_positions * 9)
    assert kernel.hbm_bytes == 2 * 2 * 128 * PLAIN.out_positions


@pytest.mark.adr("0128-D7")
def test_groups_of_few_channels_do_not_pay_for_whole_tiles() -> None:
    grouped = replace(PLAIN, in_channels=256, groups=32)
    # 72 of K are two trips of 64.
    assert flops(grouped) <= 2 * 256 * 128 * PLAIN.out_positions


@pytest.mark.adr("0128-D7")
def test_gradients_of_weights_cut_their_long_sum() -> None:
    result = chosen(replace(PLAIN, which=ConvolutionPass.TO_WEIGHT))
    assert result.kernels[0].num_tiles > SIP.num_pes / 2
    assert result.total_us < 3 * chosen(PLAIN).total_us


@pytest.mark.adr("0128-D7")
def test_channels_of_float32_by_themselves_are_slow_channels_last() -> None:
    depthwise = replace(PLAIN, out_channels=128, groups=128, dtype="tf32", itemsize=4)
    planar = replace(depthwise, planar=True)
    half = replace(depthwise, dtype="float16", itemsize=2)
    assert chosen(depthwise).total_us > 5 * chosen(planar).total_us > 5 * chosen(half).total_us
    lacking = without("conv_depthwise_last_float32")
    kernels = convolution_kernels(depthwise, SIP, lacking)
    assert kernels.total_us < chosen(depthwise).total_us / 5


def test_planes_of_half_precision_cost_more_than_channels_last() -> None:
    last = replace(PLAIN, dtype="float16")
    assert 1.5 < chosen(replace(last, planar=True)).total_us / chosen(last).total_us < 3
    # Without a kernel that takes planes, images are rearranged: half precision at half the rate.
    alone = replace(last, planar=True)
    slow = convolution_kernels(alone, SIP, without("conv_half_planar"))
    fast = convolution_kernels(alone, SIP, without("conv_half_planar", "conv_rearrange_half"))
    assert moves(fast) == 2
    rearranged_us = 2 * (alone.in_bytes + alone.out_bytes) / 2.039e6
    assert slow.total_us - fast.total_us == pytest.approx(rearranged_us / 0.8, rel=0.1)


def test_gradients_of_depthwise_weights_are_slow_in_float32_and_in_early_releases() -> None:
    half = replace(PLAIN, out_channels=128, groups=128, which=ConvolutionPass.TO_WEIGHT)
    early = replace(half, is_early=True)
    wide = replace(half, dtype="float32", itemsize=4, planar=True)
    assert [kernel.name for kernel in chosen(early).kernels] == ["conv_depthwise_weight_last_early"]
    assert chosen(early).total_us > 4 * chosen(half).total_us
    planar_early = replace(early, planar=True)
    assert chosen(planar_early).total_us == chosen(replace(half, planar=True)).total_us
    assert chosen(wide).total_us > 2 * chosen(replace(half, planar=True)).total_us
    forward = replace(early, which=ConvolutionPass.FORWARD)
    assert chosen(forward).total_us == chosen(replace(forward, is_early=False)).total_us


@pytest.mark.adr("0128-D7")
def test_gradients_of_wide_groups_are_taken_by_tiles_of_128_channels_last() -> None:
    def us_of_element(width: int, groups: int) -> float:
        channels = width * groups
        conv = replace(
            PLAIN, in_channels=channels, out_channels=channels, groups=groups, which=TO_INPUT
        )
        return chosen(conv).total_us / channels

    # 56 channels of a group take as long as 128, unless groups are a multiple of 32.
    assert us_of_element(56, 14) == pytest.approx(us_of_element(128, 6), rel=0.02)
    assert us_of_element(64, 32) < 0.6 * us_of_element(56, 14)
    assert us_of_element(24, 14) == pytest.approx(42 / 146 * us_of_element(56, 14), rel=0.1)


def test_a_strided_gradient_of_float32_multiplies_by_zeros_too() -> None:
    """KernelBench level2/16 on a T4: 16 taps of each element, of which a quarter has a value."""
    shape: dict[str, Any] = {
        "in_positions": 128 * 33 * 33,
        "out_positions": 128 * 16 * 16,
        "taps": 16,
    }
    gradient = Convolution(
        in_channels=64, out_channels=32, which=TO_INPUT, strided=True, unit_stride=False,
        planar=True, dtype="float32", itemsize=4, **shape,
    )  # fmt: skip
    products = 2 * gradient.in_positions * 64 * 32
    assert flops(gradient) == pytest.approx(products * 16, rel=0.1)
    # Version 7's calls, and tensor cores, go phase by phase of the stride; windows side by side are
    # one product.
    for how in (
        {"by_graph": False},
        {"dtype": "tf32"},
        {"taps": 4, "out_positions": 128 * 16 * 16},
    ):
        assert flops(replace(gradient, **how)) < products * gradient.taps / 3
