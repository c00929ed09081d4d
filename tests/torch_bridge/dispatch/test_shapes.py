"""Layouts of results without data are those that PyTorch gives with data."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.dispatch.shapes import Shapes  # noqa: E402

aten = torch.ops.aten
PLAIN, LAST = torch.contiguous_format, torch.channels_last


@pytest.mark.adr("0139-D1")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "formats", [(PLAIN, PLAIN), (LAST, PLAIN), (PLAIN, LAST), (LAST, LAST)], ids=str
)
def test_a_convolution_without_data_keeps_the_memory_format(
    formats: tuple[Any, Any], transposed: bool
) -> None:
    """Outside oracle: the strides that PyTorch's own convolution returns."""
    sizes = ((2, 8, 6, 6), (8, 4, 3, 3) if transposed else (4, 8, 3, 3))
    image, weight = (
        torch.zeros(size).contiguous(memory_format=form)
        for size, form in zip(sizes, formats, strict=True)
    )
    plain = (None, [1, 1], [1, 1], [1, 1], transposed, [0, 0], 1)
    expected = aten.convolution.default(image, weight, *plain)
    func = aten.convolution.default
    args = (image.to("meta"), weight.to("meta"), *plain)
    shapes = Shapes()
    for _ in range(2):
        # The second answer is the one that was kept.
        found, _ = shapes.execute(func, describe(func), args, {})
        assert (found.shape, found.stride()) == (expected.shape, expected.stride())


def test_three_dims_have_a_format_of_their_own() -> None:
    image = torch.empty(2, 8, 4, 6, 6, device="meta").to(memory_format=torch.channels_last_3d)
    weight = torch.empty(4, 8, 1, 3, 3, device="meta")
    func = aten.convolution.default
    args = (image, weight, None, [1] * 3, [0, 1, 1], [1] * 3, False, [0] * 3, 1)
    found, _ = Shapes().execute(func, describe(func), args, {})
    assert found.is_contiguous(memory_format=torch.channels_last_3d)
