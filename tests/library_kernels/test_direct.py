"""Convolutions that threads make alone: which they are, and measured boards."""

import dataclasses
import math
from typing import Any

import pytest

from kernbench.hardware import changed_machine, load_machine
from kernbench.library_kernels import Convolution, ConvolutionPass, direct_launch, time_blocks

TO_INPUT, FORWARD = ConvolutionPass.TO_INPUT, ConvolutionPass.FORWARD


def volume(
    numbers: tuple[int, ...],
    result: tuple[int, ...],
    taps: int,
    which: ConvolutionPass,
    **more: Any,
) -> Convolution:
    """Return a convolution by the shapes of its input and its output."""
    return Convolution(
        in_channels=numbers[1],
        out_channels=result[1],
        in_positions=numbers[0] * math.prod(numbers[2:]),
        out_positions=result[0] * math.prod(result[2:]),
        taps=taps,
        which=which,
        dtype=more.pop("dtype", "tf32"),
        itemsize=4,
        planar=True,
        dims=3,
        **more,
    )


GROUPS = volume((8, 32, 24, 48, 96), (8, 32, 12, 24, 48), 105, TO_INPUT, groups=4, strided=True)
"""KernelBench level1/72 at 6e6fca9c: a transposed convolution is the gradient of an input."""
NARROW = volume((128, 16, 31, 63, 63), (128, 3, 16, 32, 32), 27, TO_INPUT, strided=True)
"""Of level2/50, 58, 60 and 96."""
FEW = volume((128, 3, 24, 32, 32), (128, 24, 22, 30, 30), 81 // 3, FORWARD)
"""Of level2/24 at 6e6fca9c."""


def time_ms(
    machine: str, conv: Convolution, has_narrow: bool = False, gathered: float = 0.0
) -> float:
    launch = direct_launch("volume", conv, has_narrow, gathered)
    assert launch is not None
    return time_blocks(launch, load_machine(machine, 1).sip).total_us / 1e3


@pytest.mark.parametrize(
    ("machine", "measured_ms"),
    [("h100-sxm", 2.82), ("h100-pcie", 3.22), ("rtx-a6000", 5.25)],
)
def test_gradients_in_groups_take_as_long_as_measured(machine: str, measured_ms: float) -> None:
    """KernelBench at 6e6fca9c, 1e82d8b1 and 7c914ea7; L40S takes twice the modeled time."""
    assert time_ms(machine, GROUPS) == pytest.approx(measured_ms, rel=0.25)


@pytest.mark.parametrize(
    ("machine", "whole_ms", "rest_ms"), [("a100-sxm-80g", 21.8, 3.1), ("rtx-a6000", 30.1, 8.3)]
)
def test_strided_gradients_of_few_channels_take_as_long_as_measured(
    machine: str, whole_ms: float, rest_ms: float
) -> None:
    """KernelBench level2/50 at 80c03d44 and 7c914ea7, less its bias, products and pooling."""
    assert time_ms(machine, NARROW) == pytest.approx(whole_ms - rest_ms, rel=0.2)


@pytest.mark.parametrize(
    ("machine", "whole_ms", "rest_ms", "gathered"),
    [("h100-sxm", 0.969, 0.26, 1.0), ("l40s", 2.06, 0.97, 0.0), ("rtx-a6000", 2.92, 1.1, 0.0)],
)
def test_patches_of_few_channels_are_gathered_as_fast_as_measured(
    machine: str, whole_ms: float, rest_ms: float, gathered: float
) -> None:
    """KernelBench level2/24 at 6e6fca9c, 4082b873 and 7c914ea7, less its bias and minimum."""
    result = time_ms(machine, FEW, gathered=gathered)
    assert result == pytest.approx(whole_ms - rest_ms, rel=0.45)


def test_an_sm_gathers_elements_one_after_another_whatever_they_make() -> None:
    sip = load_machine("a100-sxm-80g", 1).sip
    elements = FEW.out_positions * FEW.in_channels * FEW.taps
    clocks_per_ms = sip.num_pes * float(sip.clock_ghz) * 1e6
    loss = float(sip.sustained.clock_loss) if sip.sustained is not None else 0.0
    # A hot clock loses up to that, the more of it the longer a kernel takes.
    for gathered in (2.0, 1.0):
        least_ms = elements / gathered / clocks_per_ms
        assert 1 < time_ms("a100-sxm-80g", FEW, gathered=gathered) / least_ms < 1.03 + loss
    slow = time_ms("a100-sxm-80g", FEW, gathered=1.0)
    wider = dataclasses.replace(FEW, out_channels=FEW.out_channels + 8)
    assert time_ms("a100-sxm-80g", wider, gathered=1.0) == pytest.approx(slow, rel=0.02)
    # Without tensor cores what is multiplied takes its clocks, too.
    assert time_ms("a100-sxm-80g", wider) > 1.1 * time_ms("a100-sxm-80g", FEW)


def test_boards_that_power_slows_down_are_slower_by_what_it_takes() -> None:
    """A multiplying launch meets the clock of float32 products, as products do."""
    machine = load_machine("l40s", 1)
    assert machine.sip.sustained is not None
    loss = float(machine.sip.sustained.float32_clock_loss or 0)
    cool = changed_machine(machine, {"sip.sustained.float32_clock_loss": 1e-6}).sip_at(0)
    launch = direct_launch("volume", NARROW, False, 0.0)
    assert launch is not None
    hot_us, cool_us = (time_blocks(launch, sip).total_us for sip in (machine.sip, cool))
    assert hot_us / cool_us == pytest.approx(1 + loss * cool_us / (cool_us + 50), rel=0.01)


def test_a_thread_tries_all_taps_whatever_the_channels() -> None:
    wider = dataclasses.replace(NARROW, out_channels=2 * NARROW.out_channels)
    assert time_ms("t4", wider) == pytest.approx(time_ms("t4", NARROW), rel=0.02)
    longer = dataclasses.replace(NARROW, taps=2 * NARROW.taps)
    assert time_ms("t4", longer) == pytest.approx(2 * time_ms("t4", NARROW), rel=0.05)


@pytest.mark.parametrize(
    "how",
    [
        {"dims": 2},
        {"planar": False},
        {"itemsize": 2, "dtype": "bfloat16"},
        {"strided": False},
        {"in_channels": 64},
    ],
)
def test_what_tensor_cores_have_kernels_for_is_left_to_them(how: dict[str, Any]) -> None:
    assert direct_launch("volume", dataclasses.replace(NARROW, **how), False, 0.0) is None
    assert direct_launch("volume", NARROW, True, 0.0) is None
    assert direct_launch("volume", dataclasses.replace(FEW, in_channels=32), False, 0.0) is None


def test_without_tf32_every_strided_gradient_is_direct() -> None:
    wide = dataclasses.replace(NARROW, in_channels=64)
    assert direct_launch("volume", wide, True, 0.0) is None
    exact = dataclasses.replace(wide, dtype="float32")
    assert direct_launch("volume", exact, True, 0.0) is not None


def of_windows(groups: int, windows: int, width: int = 49) -> Convolution:
    """Return a convolution along the positions of windows, a group for each head."""
    shape = (windows, groups * width, 32)
    return dataclasses.replace(volume(shape, shape, 1, FORWARD, groups=groups), dims=2)


@pytest.mark.parametrize(
    ("machine", "whole_ms", "rest_ms"),
    [("h100-pcie", 5.07, 3.1), ("a100-sxm-80g", 7.6, 5.9), ("rtx-a6000", 9.45, 7.5)],
)
def test_groups_that_fill_no_tile_take_as_long_as_measured(
    machine: str, whole_ms: float, rest_ms: float
) -> None:
    """KernelBench level3/29 at e70b0826, 80c03d44 and 7c914ea7, less its other kernels."""
    images = (
        (3, 640, 1),
        (3, 810, 1),
        (6, 160, 1),
        (6, 250, 1),
        (12, 40, 3),
        (12, 90, 3),
        (24, 10, 2),
    )
    total_ms = sum(many * time_ms(machine, of_windows(*size)) for *size, many in images)
    assert total_ms == pytest.approx(whole_ms - rest_ms, rel=0.35)


def test_groups_go_to_threads_where_no_kernel_has_tiles_for_them() -> None:
    """Tensor cores want channels in fours, in float32 groups make as many as they take."""
    even = of_windows(3, 640, 48)
    exact = dataclasses.replace(even, dtype="float32")
    wider: dict[str, Any] = {"out_channels": 2 * even.out_channels}
    for conv, is_direct in (
        (of_windows(3, 640), True),
        (even, False),
        (dataclasses.replace(even, **wider), False),
        (exact, False),
        (dataclasses.replace(exact, **wider), True),
        (dataclasses.replace(exact, **wider, planar=False), False),
        (of_windows(1, 640), False),
    ):
        assert (direct_launch("conv", conv, False, 0.0) is not None) == is_direct


def test_a_gradient_in_groups_takes_what_its_multiplications_take() -> None:
    """Not what the elements of a stride take that no window has a tap for."""
    forward = dataclasses.replace(of_windows(8, 128, 6), out_channels=16 * 6, taps=49)
    gradient = dataclasses.replace(
        forward, which=TO_INPUT, in_positions=4 * forward.in_positions, strided=True
    )
    assert time_ms("t4", gradient) == pytest.approx(time_ms("t4", forward), rel=0.3)
