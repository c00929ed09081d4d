"""Descriptors that a kernel makes are held to what TMA demands of their base and strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic

import kernbench
from kernbench.errors import BadPointerError, DeviceAssertError, KernbenchError, UsageError


@triton.jit
def tile(x, out, stride, DECIDES: tl.constexpr, FROM: tl.constexpr, B: tl.constexpr):
    if DECIDES:  # noqa: SIM102 - only the inner one is data
        if tl.load(out) > 100:
            return
    source = tl.make_tensor_descriptor(x + FROM, [B, B], [stride, 1], [B, B])
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(out + at, source.load([0, 0]))


@triton.jit
def by_loaded_stride(x, strides, out, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [B, B], [tl.load(strides), 1], [B, B])
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(out + at, source.load([0, 0]))


@triton.jit
def in_groups(addresses, strides, out, count, B: tl.constexpr):
    """As a grouped product that finds its operands in memory."""
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    for group in range(count):
        base = tl.load(addresses + group).to(tl.pointer_type(tl.float16))
        stride = tl.load(strides + group)
        source = tl.make_tensor_descriptor(base, [B, B], [stride, 1], [B, B])
        tl.store(out + group * B * B + at, source.load([0, 0]))


def run(stride: int, first: int, inside: int, decides: bool, machine: str = "h100-sxm") -> None:
    values = np.arange(32 * 80, dtype=np.float32).astype(np.float16)
    with kernbench.RuntimeContext(machine=machine) as torch:
        x, out = torch.from_numpy(values), torch.zeros(32, 32, dtype="f16")
        tile[(1,)](x[first:], out, stride, decides, inside, B=32)
        rows = np.arange(32)[:, None] * stride + first + inside
        np.testing.assert_array_equal(out.numpy(), values[rows + np.arange(32)])


@pytest.mark.adr("0232-D7")
@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize(
    ("stride", "first", "inside", "words"),
    [
        *((64, 0, 0, ""), (72, 8, 16, ""), (64, 1, 7, "")),
        (65, 0, 0, "stride 0 is 65 elements of f16, 130 bytes, but must be a multiple of 16"),
        (64, 1, 0, "its base .* bytes beyond a multiple of 16 bytes"),
        (64, 0, 4, "its base .* bytes beyond a multiple of 16 bytes"),
    ],
)
def test_base_and_strides_are_multiples_of_16_bytes(
    decides: bool, stride: int, first: int, inside: int, words: str
) -> None:
    if not words:
        run(stride, first, inside, decides)
        return
    error = UsageError if "stride" in words else BadPointerError
    with pytest.raises(error, match=r"kernel tile at test_descriptors.py:\d+: " + words):
        run(stride, first, inside, decides)


@pytest.mark.adr("0232-D7")
@pytest.mark.parametrize("machine", ["a100-sxm-80g", "b200", "mi300x", "ahbm"])
def test_on_every_machine(machine: str) -> None:
    run(64, 0, 0, False, machine)
    with pytest.raises(UsageError, match="stride 0 is 65 elements"):
        run(65, 0, 0, False, machine)


@pytest.mark.adr("0232-D7")
@pytest.mark.parametrize(("stride", "first"), [(40, 0), (41, 0), (40, 1)])
def test_those_found_in_memory_are_held_to_it_as_well(stride: int, first: int) -> None:
    def run(torch: Any) -> None:
        x, out = torch.zeros(4096, dtype="f16"), torch.zeros(2, 32, 32, dtype="f16")
        at = torch.tensor([x.data_ptr(), x.data_ptr() + 2 * first], dtype="i64")
        in_groups[(1,)](at, torch.tensor([40, stride], dtype="i64"), out, 2, B=32)
        out.numpy()

    with kernbench.RuntimeContext(machine="h100-sxm") as torch:
        if (stride, first) == (40, 0):
            run(torch)
            return
        with pytest.raises(KernbenchError, match=r"41 elements of f16|its base is 2 bytes beyond"):
            run(torch)


@pytest.mark.adr("0232-D7")
def test_a_stride_that_is_data_is_checked_where_it_is_known() -> None:
    def run(torch: Any, stride: int) -> None:
        x, out = torch.zeros(4096, dtype="f16"), torch.zeros(32, 32, dtype="f16")
        by_loaded_stride[(1,)](x, torch.tensor([stride], dtype="i64"), out, B=32)
        out.numpy()

    with kernbench.RuntimeContext(machine="h100-sxm") as torch:
        run(torch, 40)
    with (
        kernbench.RuntimeContext(machine="h100-sxm") as torch,
        pytest.raises(DeviceAssertError, match="a stride of a tensor descriptor is no multiple"),
    ):
        run(torch, 41)


def test_triton_makes_descriptors_itself_again_after_the_run() -> None:
    before = TritonSemantic.make_tensor_descriptor
    with kernbench.RuntimeContext(machine="ahbm"):
        assert TritonSemantic.make_tensor_descriptor is not before
    assert TritonSemantic.make_tensor_descriptor is before
