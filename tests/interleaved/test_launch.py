"""Programs that wait for others need these on the device with them."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import DeadlockError
from kernbench.interleaved.strand import Strand

MACHINE, HELD = "l4", 58
"""A small device, and how many programs of 32 warps it holds at a time: one of each SM."""


@triton.jit
def meets(out, count, programs):
    tl.atomic_add(count, 1, sem="release")
    while tl.atomic_add(count, 0, sem="acquire") < programs:
        pass
    tl.store(out + tl.program_id(0), 1)


@triton.jit
def meets_early_leavers(out, count, programs, leaving):
    pid = tl.program_id(0)
    tl.atomic_add(count, 1, sem="release")
    if pid < leaving:
        return
    while tl.atomic_add(count, 0, sem="acquire") < programs:
        pass
    tl.store(out + pid, 1)


@triton.jit
def follows(out, flags, programs, BACKWARDS: tl.constexpr):
    pid = tl.program_id(0)
    if BACKWARDS:
        pid = programs - 1 - pid
    before = 0
    if pid > 0:
        while tl.atomic_add(flags + pid - 1, 0, sem="acquire") == 0:
            pass
        before = tl.load(out + pid - 1)
    tl.store(out + pid, before + 1)
    tl.debug_barrier()
    tl.atomic_xchg(flags + pid, 1, sem="release")


@triton.jit
def locks(out, lock):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out, tl.load(out) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def run(kernel: Any, programs: int, *arguments: Any, check: bool = False) -> list[int]:
    with kernbench.RuntimeContext(machine=MACHINE, check=check) as torch:
        out, flags = (torch.zeros(programs, dtype="i32") for _ in range(2))
        kernel[(programs,)](out, flags, *arguments, num_warps=32)
        return [int(item) for item in out.tolist()]


@pytest.mark.adr("0233-D2")
@pytest.mark.parametrize("check", [False, True])
def test_a_barrier_of_more_programs_than_the_device_holds_never_opens(check: bool) -> None:
    assert run(meets, HELD, HELD, check=check) == [1] * HELD
    words = f"{HELD} of {HELD + 3} programs wait .* and 3 have not begun: the device holds {HELD} "
    with pytest.raises(DeadlockError, match=words):
        run(meets, HELD + 3, HELD + 3, check=check)


@pytest.mark.adr("0233-D2")
def test_programs_begin_where_others_have_left() -> None:
    result = run(meets_early_leavers, HELD + 3, HELD + 3, 3)
    assert result == [0] * 3 + [1] * HELD
    with pytest.raises(DeadlockError, match="1 have not begun"):
        run(meets_early_leavers, HELD + 3, HELD + 3, 2)


@pytest.mark.adr("0233-D2")
def test_those_that_wait_for_lower_ones_alone_may_be_any_number() -> None:
    programs = HELD + 40
    assert run(follows, programs, programs, False) == list(range(1, programs + 1))
    assert run(locks, programs)[0] == programs
    with pytest.raises(DeadlockError, match="40 have not begun"):
        run(follows, programs, programs, True)


@pytest.mark.adr("0233-D2")
def test_late_programs_do_not_take_a_turn_each_whenever_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs, turns = 2 * HELD, 0
    advance = Strand.advance

    def counted(strand: Strand) -> bool:
        nonlocal turns
        turns += 1
        return advance(strand)

    monkeypatch.setattr(Strand, "advance", counted)
    assert run(follows, programs, programs, False)[-1] == programs
    assert programs < turns < 5 * programs
