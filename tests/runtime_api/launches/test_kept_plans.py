"""How many plans of launches a run keeps."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from kernbench import RuntimeContext
from kernbench.runtime_api.launches.kept_plans import KeptPlans


@triton.jit(do_not_specialize=("n",))
def scale(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(x_ptr + at, 2 * x, mask=at < n)


def durations_us(torch: RuntimeContext, sizes: range) -> list[float]:
    result = []
    for n in sizes:
        x = torch.zeros(n)
        result.append(
            triton.testing.do_bench(lambda n=n, x=x: scale[(-(-n // 64),)](x, n, BLOCK=64))
        )
    return result


@pytest.mark.adr("0080-D1")
def test_what_there_is_no_room_for_is_forgotten_and_made_again() -> None:
    sizes = range(100, 140)
    with RuntimeContext(machine="ahbm") as torch:
        expected = durations_us(torch, sizes)
        whole = torch.launcher.kept_plans
        assert len(whole) == len(sizes)
        room = whole.size_bytes // 4
    with RuntimeContext(machine="ahbm") as torch:
        torch.launcher.kept_plans = kept = KeptPlans(room)
        for _ in range(2):
            assert durations_us(torch, sizes) == expected
            assert 1 < len(kept) < len(sizes) // 2
            assert kept.size_bytes <= room


@pytest.mark.adr("0080-D1")
def test_a_plan_that_is_launched_again_and_again_stays() -> None:
    with RuntimeContext(machine="ahbm") as torch:
        (first,) = durations_us(torch, range(64, 65))
        launcher = torch.launcher
        room = 6 * launcher.kept_plans.size_bytes
    with RuntimeContext(machine="ahbm") as torch:
        launcher = torch.launcher
        launcher.kept_plans = KeptPlans(room)
        durations_us(torch, range(64, 65))
        ((entry, plans),) = [(entry, entry.plans) for entry in launcher.engine._entries.values()]
        (plan,) = plans.values()
        for n in range(100, 160):
            durations_us(torch, range(n, n + 1))
            assert durations_us(torch, range(64, 65)) == [first]
        assert plan in entry.plans.values()


@pytest.mark.adr("0080-D1")
def test_the_latest_plan_stays_whatever_its_size() -> None:
    with RuntimeContext(machine="ahbm") as torch:
        torch.launcher.kept_plans = kept = KeptPlans(1)
        durations_us(torch, range(100, 103))
        assert len(kept) == 1
