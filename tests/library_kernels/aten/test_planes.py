"""Norms of groups and channels take what is published."""

import pytest

from kernbench.hardware import load_machine
from kernbench.library_kernels.aten import batch_norm, by_channel, group_norm
from tests.library_kernels.aten.measured import milliseconds


@pytest.mark.parametrize(
    ("machine", "batch", "side", "measured_ms"),
    [
        # KernelBench level1/35 at 6e6fca9c, 3396fc0c, 4082b873, dacd881c, 80c03d44, 87fc84ca.
        ("h100-sxm", 112, 512, 10.1), ("h100-pcie", 112, 512, 13.8), ("l40s", 112, 512, 33.6),
        ("h100-sxm", 16, 256, 0.675), ("a100-sxm-80g", 16, 256, 1.15), ("l40s", 16, 256, 1.25),
        ("a100-sxm-40g", 16, 256, 1.21), ("rtx-a6000", 16, 256, 1.25),
    ],
)  # fmt: skip
def test_a_group_norm_has_a_block_for_each_group(
    machine: str, batch: int, side: int, measured_ms: float
) -> None:
    sip = load_machine(machine).sip
    launches = group_norm(batch * 8, batch * 64, batch * 64 * side * side, 4)
    assert launches[0].blocks == batch * 8
    assert milliseconds(launches, sip) == pytest.approx(measured_ms, rel=0.15)


@pytest.mark.parametrize(
    ("machine", "measured_ms"), [("h100-sxm", 9.61), ("h100-pcie", 13.9), ("l40s", 36.7)]
)
def test_an_instance_norm_is_a_batch_norm_of_all_planes(machine: str, measured_ms: float) -> None:
    """KernelBench level1/34 at 6e6fca9c, 3396fc0c and 4082b873: 112 images of 64 planes."""
    sip = load_machine(machine).sip
    launches = batch_norm(1, 112 * 64, 512 * 512, 4, trains=True)
    assert milliseconds(launches, sip) == pytest.approx(measured_ms, rel=0.12)
    assert len(batch_norm(1, 64, 512 * 512, 4, trains=False)) == 1


@pytest.mark.adr("0242-D1")
@pytest.mark.parametrize(
    ("machine", "architecture", "images", "side", "measured_ms"),
    [
        # KernelBench level1/33 at 6e6fca9c, 3396fc0c, dacd881c, 80c03d44, 4082b873, 87fc84ca.
        ("h100-sxm", 90, 64, 512, 8.77), ("h100-pcie", 90, 64, 512, 11.5),
        ("h100-sxm", 90, 16, 256, 0.58), ("a100-sxm-80g", 80, 16, 256, 1.32),
        ("a100-sxm-40g", 80, 16, 256, 1.33), ("l40s", 89, 16, 256, 1.28),
        ("l40s", 89, 64, 512, 23.5), ("rtx-a6000", 86, 16, 256, 1.24),
    ],
)  # fmt: skip
def test_sixty_four_channels_keep_sixty_four_blocks_busy(
    machine: str, architecture: int, images: int, side: int, measured_ms: float
) -> None:
    sip = load_machine(machine).sip
    size = images * 64 * side * side * 4
    launch = by_channel(64, 2 * size, size, architecture)
    assert milliseconds([launch], sip) == pytest.approx(measured_ms, rel=0.15)
