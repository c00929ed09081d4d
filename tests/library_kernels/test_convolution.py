"""Convolutions of cuDNN: their arithmetic against closed forms, layouts, and which way is taken."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import load_library, load_machine
from kernbench.library_kernels import (
    Convolution,
    ConvolutionPass,
    KernelChoice,
    convolution_kernels,
)

SIP = load_machine("a100-sxm-80g").sip
LIBRARY = load_library("sm80")
PLAIN = Convolution(
    given=128, made=256, given_positions=64 * 28 * 28, made_positions=64 * 28 * 28, taps=9
)


def chosen(convolution: Convolution) -> KernelChoice:
    return convolution_kernels(convolution, SIP, LIBRARY)


def flops(convolution: Convolution) -> float:
    return sum(each.flops for each in chosen(convolution).kernels)


@pytest.mark.adr("0134-D2")
@given(
    st.integers(1, 300), st.integers(1, 300), st.integers(2, 30000), st.sampled_from([1, 9, 49]),
    st.sampled_from(ConvolutionPass),
)  # fmt: skip
def test_a_convolution_does_at_least_its_products(
    given: int, made: int, positions: int, taps: int, which: ConvolutionPass
) -> None:
    convolution = Convolution(
        given=given, made=made, given_positions=positions, made_positions=positions, taps=taps,
        unit_stride=False, which=which,
    )  # fmt: skip
    if made > 1 and given * taps > 1:
        assert flops(convolution) >= 2 * given * made * positions * taps


@pytest.mark.adr("0134-D3")
def test_matrix_engines_rearrange_planar_images_and_float32_those_that_are_not() -> None:
    def moves(convolution: Convolution) -> int:
        return sum(each.name == "conv_rearrange" for each in chosen(convolution).kernels)

    exact = replace(PLAIN, dtype="float32", itemsize=4)
    assert [moves(each) for each in (PLAIN, replace(PLAIN, planar=True))] == [0, 2]
    assert [moves(each) for each in (exact, replace(exact, planar=True))] == [2, 0]


@pytest.mark.adr("0134-D2")
def test_winograd_saves_multiplications_of_float32_where_it_can() -> None:
    exact = replace(PLAIN, dtype="float32", itemsize=4, planar=True)
    assert {each.name for each in chosen(exact).kernels} == {"conv_winograd"}
    strided = replace(exact, unit_stride=False)
    assert chosen(exact).total_us < chosen(strided).total_us
    assert flops(exact) < 2 * 128 * 256 * PLAIN.made_positions * 9


@pytest.mark.adr("0134-D2")
def test_a_channel_by_itself_needs_no_matrix_engine() -> None:
    depthwise = replace(PLAIN, made=128, groups=128)
    (kernel,) = chosen(depthwise).kernels
    assert not kernel.flops
    work = sum(each.count * each.trips * each.trip.simple for each in kernel.tiles)
    assert work == pytest.approx(128 * PLAIN.made_positions * 9)
    assert kernel.hbm_bytes == 2 * 2 * 128 * PLAIN.made_positions


@pytest.mark.adr("0134-D2")
def test_groups_of_few_channels_do_not_pay_for_whole_tiles() -> None:
    grouped = replace(PLAIN, given=256, groups=32)
    # 72 of K are two trips of 64.
    assert flops(grouped) <= 2 * 256 * 128 * PLAIN.made_positions


@pytest.mark.adr("0134-D2")
def test_gradients_of_weights_cut_their_long_sum() -> None:
    found = chosen(replace(PLAIN, which=ConvolutionPass.TO_WEIGHT))
    assert found.kernels[0].num_tiles > SIP.num_pes / 2
    assert found.total_us < 3 * chosen(PLAIN).total_us
