"""A tuned kernel that changes what its candidates would have changed is named under --check."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import TunedInPlaceError

CONFIGS = [triton.Config({"B": 64}), triton.Config({"B": 128})]


@triton.jit
def doubles(x, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, tl.load(x + at, mask=at < n, other=0) * 2 + 1, mask=at < n)


@triton.jit
def adds_up(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0)))


@triton.jit
def overwrites(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0) + 1, mask=at < n)
    # Read back: it was written before, in every run.
    tl.store(out + at, tl.load(out + at, mask=at < n, other=0) * 2, mask=at < n)


@triton.jit
def clamps(x, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, tl.minimum(tl.load(x + at, mask=at < n, other=0), 0.5), mask=at < n)


@triton.jit
def last_one(x, count, n, RESETS: tl.constexpr, B: tl.constexpr):
    arrived = tl.atomic_add(count, 1)
    if arrived == tl.num_programs(0) - 1:
        tl.store(x, 3.0)
        if RESETS:
            tl.atomic_xchg(count, 0)


@triton.jit
def swaps(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    before = tl.load(x + at, mask=at < n, other=0)
    tl.store(x + at, tl.load(out + at, mask=at < n, other=0), mask=at < n)
    tl.store(out + at, before, mask=at < n)


def grid(meta: dict[str, int]) -> tuple[int]:
    return (triton.cdiv(100, meta["B"]),)


def tuned(kernel: Any, **options: Any) -> Any:
    configs = options.pop("configs", CONFIGS)
    return triton.autotune(configs, key=["n"], **options)(kernel)


def first_of(kernel: Any, *, check: bool = True, out: bool = False, times: int = 1) -> float:
    with kernbench.RuntimeContext(machine="h100-sxm", check=check) as torch:
        x, result = torch.ones(100), torch.zeros(100)
        for _ in range(times):
            kernel[grid](x, *([result] if out else []), 100)
        return float((result if out else x)[0].item())


@pytest.mark.adr("0233-D4")
def test_in_place_and_atomics_name_kernel_and_argument() -> None:
    words = r"kernel doubles at test_tuned.py:\d+ was tuned .* \(argument x\); .*list x in"
    with pytest.raises(TunedInPlaceError, match=words):
        first_of(tuned(doubles))
    with pytest.raises(TunedInPlaceError, match=r"kernel adds_up .*\(argument out\)"):
        first_of(tuned(adds_up), out=True)
    assert first_of(tuned(doubles), check=False) == 3


@pytest.mark.adr("0233-D4")
def test_what_follows_an_argument_that_is_not_restored_names_that_one() -> None:
    with pytest.raises(TunedInPlaceError, match=r"byte \d+ of .* \(argument out\); .*list out in"):
        first_of(tuned(swaps, restore_value=["x"]), out=True)
    assert first_of(tuned(swaps, restore_value=["x", "out"]), out=True) == 1


@pytest.mark.adr("0233-D4")
@pytest.mark.parametrize(
    ("kernel", "options", "expected"),
    [
        (doubles, {"restore_value": ["x"]}, 3),
        (adds_up, {"reset_to_zero": ["out"]}, 100),
        (overwrites, {}, 4),
        (clamps, {}, 0.5),
        (doubles, {"configs": CONFIGS[:1]}, 3),
        (
            doubles,
            {"prune_configs_by": {"early_config_prune": lambda value, *_, **__: value[:1]}},
            3,
        ),
        (doubles, {"pre_hook": lambda *_, **__: None, "post_hook": lambda *_, **__: None}, 3),
    ],
)
def test_what_a_gpu_does_right_is_no_finding(
    kernel: Any, options: dict[str, Any], expected: float
) -> None:
    assert first_of(tuned(kernel, **options), out=kernel in (adds_up, overwrites)) == expected


@pytest.mark.adr("0233-D4")
def test_a_launch_that_nothing_was_measured_for_is_none() -> None:
    kernel = tuned(doubles, restore_value=["x"])
    assert first_of(kernel, times=3) == 15


@pytest.mark.adr("0233-D4")
@pytest.mark.parametrize("resets", [True, False])
def test_kernels_that_decide_by_data_are_run_again_too(resets: bool) -> None:
    def run() -> None:
        with kernbench.RuntimeContext(machine="h100-sxm", check=True) as torch:
            x, count = torch.zeros(1), torch.zeros(1, dtype="i32")
            tuned(last_one)[grid](x, count, 100, RESETS=resets)
            assert x.item() == 3

    if resets:
        run()
        return
    with pytest.raises(TunedInPlaceError, match=r"\(argument count\)"):
        run()
