"""Layouts of results without data are those that PyTorch gives with data."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.dispatch.shapes import Shapes  # noqa: E402

aten = torch.ops.aten
PLAIN, LAST = torch.contiguous_format, torch.channels_last


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
        result, _ = shapes.execute(func, describe(func), args, {})
        assert (result.shape, result.stride()) == (expected.shape, expected.stride())


def test_three_dims_have_a_format_of_their_own() -> None:
    image = torch.empty(2, 8, 4, 6, 6, device="meta").to(memory_format=torch.channels_last_3d)
    weight = torch.empty(4, 8, 1, 3, 3, device="meta")
    func = aten.convolution.default
    args = (image, weight, None, [1] * 3, [0, 1, 1], [1] * 3, False, [0] * 3, 1)
    result, _ = Shapes().execute(func, describe(func), args, {})
    assert result.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("offset", [0, 4])
def test_a_part_of_an_operand_stays_one_though_the_schema_does_not_say_so(offset: int) -> None:
    """FSDP2's all-gathers are given a part of what they fill, which the first rank has first."""
    import torch.distributed.fsdp

    func = torch.ops.fsdp.all_gather_copy_in.default
    tensor = torch.empty(4, device="meta")
    whole = torch.empty(8, device="meta")
    shapes = Shapes()
    for _ in range(2):
        args = ([tensor], whole, [4], 4, offset // 4)
        (part, filled), _ = shapes.execute(func, describe(func), args, {})
        assert filled is whole
        assert part.untyped_storage()._cdata == whole.untyped_storage()._cdata
        assert part.storage_offset() == offset


def test_what_is_written_to_a_named_tensor_is_that_tensor() -> None:
    func = aten.add.out
    a, out = (torch.empty(4, device="meta") for _ in "ab")
    shapes = Shapes()
    for _ in range(2):
        assert shapes.execute(func, describe(func), (a, a), {"out": out})[0] is out
