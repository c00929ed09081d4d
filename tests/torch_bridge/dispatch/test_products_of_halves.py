"""Products of halves add up in float32 and round once, whatever kernels the CPU has for them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.dispatch import wider_numbers  # noqa: E402

HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def no_kernels_for_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this CPU be one that multiplies halves element by element."""
    monkeypatch.setattr(wider_numbers, "_SLOW_HALVES", frozenset(HALVES))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_results_are_those_of_float32_rounded_once(dtype: Any) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(3, 40, 300).to(dtype), torch.randn(3, 300, 24).to(dtype)
    x, weight = torch.randn(2, 4, 9, 9).to(dtype), torch.randn(6, 4, 3, 3).to(dtype)
    aten = torch.ops.aten
    cases = [
        (aten.mm.default, (a[0], b[0])),
        (aten.mm.default, (b[0].t(), a[0].t())),
        (aten.addmm.default, (b[1][:40], a[0], b[0])),
        (aten.bmm.default, (a, b)),
        (aten.convolution.default, (x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    ]
    for function, args in cases:
        call = wider_numbers.with_dtypes_of_gpus(describe(function)).call
        wide = [item.float() if isinstance(item, torch.Tensor) else item for item in args]
        expected = function(*wide).to(dtype)
        result = call(*args)
        assert result.dtype is dtype
        assert torch.equal(result, expected)


def test_a_tensor_that_is_given_is_written() -> None:
    a, b = torch.ones(4, 8).half(), torch.ones(8, 6).half()
    table = torch.zeros(4, 12).half()
    out = table[:, ::2]
    call = wider_numbers.with_dtypes_of_gpus(describe(torch.ops.aten.mm.out)).call
    assert call(a, b, out=out) is out
    assert table.tolist() == [[8, 0] * 6] * 4


def test_gradients_that_are_not_asked_for_stay_away() -> None:
    call = wider_numbers.with_dtypes_of_gpus(
        describe(torch.ops.aten.convolution_backward.default)
    ).call
    x, weight = torch.ones(1, 2, 5, 5).half(), torch.ones(3, 2, 3, 3).half()
    settings = ([3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    of_x, of_weight, of_bias = call(
        torch.ones(1, 3, 3, 3).half(), x, weight, *settings, [False, True, True]
    )
    assert of_x is None
    assert (of_weight.dtype, of_weight.unique().tolist()) == (torch.float16, [9])
    assert of_bias.tolist() == [9, 9, 9]


def test_what_pytorch_refuses_of_mixed_dtypes_is_refused() -> None:
    half, single = torch.ones(8, 8).half(), torch.ones(8, 8)
    aten = torch.ops.aten
    cases = [
        (aten.mm.default, (half, single), {}),
        (aten.mm.out, (half, half), {"out": single}),
        (aten.addmm.default, (half, single, half), {}),
        (aten.bmm.default, (half[None], single[None]), {}),
        (
            aten.convolution.default,
            (half[None, None], single[None, None, :3, :3], None, *([1, 1], [0, 0], [1, 1])),
            {"transposed": False, "output_padding": [0, 0], "groups": 1},
        ),
    ]
    for function, args, kwargs in cases:
        call = wider_numbers.with_dtypes_of_gpus(describe(function)).call
        # What PyTorch says depends on the CPU's instructions.
        with pytest.raises(RuntimeError, match=r"dtype|scalar type|type .* should be the same"):
            call(*args, **kwargs)


def test_groups_may_name_the_dtype_that_they_have() -> None:
    a, b = torch.ones(8, 16).bfloat16(), torch.ones(2, 16, 8).bfloat16()
    ends = torch.tensor([4, 8], dtype=torch.int32)
    call = wider_numbers.with_dtypes_of_gpus(describe(torch.ops.aten._grouped_mm.default)).call
    result = call(a, b, ends, None, torch.bfloat16)
    assert (result.dtype, result.unique().tolist()) == (torch.bfloat16, [16])
