"""A check of the sanitizer is a class of its own, and a place in the registry."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.checks import Allowed
from kernbench.commands import Command, Math
from kernbench.errors import KernbenchError
from kernbench.replay import Frame, GroupPlan, Step
from kernbench.sanitizer import registry
from kernbench.sanitizer.check import Check
from kernbench.sanitizer.facts.shadows import mark
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.origins import Origin, UsedLane
from tests.sanitizer.test_sanitizer import twins

SANITIZER = Path(registry.__file__).parent


class NegativeError(KernbenchError, ArithmeticError):
    pass


class Remainder(Origin):
    """The lane is a negative remainder."""

    def report(self, used: UsedLane, state: LaunchState) -> None:
        raise NegativeError(
            f"{used.here} {used.what}: negative remainder at {self.line}{self.through}"
        )


class Remainders(Check):
    """Remainders below zero, which Python's operator of the same name never gives."""

    def computed(self, group: GroupPlan, command: Command, inputs: list[int]) -> list[Step]:
        if not isinstance(command, Math) or command.op != "arith.remsi":
            return []
        number = self.kernel.origins.number(Remainder(command.line))
        shadow = group.shadow(command.dst.slot)

        def step(frame: Frame) -> None:
            bad = frame.values[command.dst.slot] < 0
            if bad.any():
                mark(frame.values, shadow, bad, number)

        return [step]


@triton.jit
def remainders(x, y, out, n, GUARDED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < n
    by = tl.load(y + at, mask=mask, other=-1)
    value = tl.load(x + at, mask=mask, other=-1)
    result = value % by
    if GUARDED:
        result = tl.where(value < 0, 1, result)
    tl.store(out + at, result, mask=mask)


@triton.jit
def sums_of_remainders(count, x, y, out, BLOCK: tl.constexpr):
    """How often is data."""
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for i in range(tl.load(count)):
        total += tl.load(x + i * BLOCK + at) % tl.load(y + i * BLOCK + at)
    tl.store(out, tl.sum(total))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CHECKS", (*registry.CHECKS, Remainders))


@pytest.fixture
def torch(checks: None) -> Iterator[Any]:
    with kernbench.RuntimeContext(machine="ahbm", check=True) as run:
        yield run


def numbers(torch: Any, *, negative: bool) -> tuple[Any, Any]:
    value = np.arange(16, dtype=np.int32)
    value[5] = -5 if negative else 5
    return torch.from_numpy(value), torch.full((16,), 3, dtype="i32")


@pytest.mark.adr("0124-D1", "0124-D2")
def test_a_check_in_the_registry_reports_where_the_lane_is_used(torch: Any) -> None:
    def run(bug: bool) -> None:
        x, y = numbers(torch, negative=bug)
        out = torch.zeros(10, dtype="i32", name="out")
        # Lanes that the mask switches off are negative and not stored.
        remainders[(1,)](x, y, out, 10, GUARDED=False, BLOCK=16)
        np.testing.assert_array_equal(out.numpy(), np.fmod(x.numpy(), 3)[:10])

    twins(
        run,
        NegativeError,
        "tt.store at test_registry.py",
        "(kernel remainders, rank 0, program (0, 0, 0)) stores an undefined value to out (10,)",
        "+20 (element 5): negative remainder at test_registry.py",
    )


def test_a_lane_that_the_program_drops_is_no_finding(torch: Any) -> None:
    x, y = numbers(torch, negative=True)
    out = torch.zeros(10, dtype="i32")
    remainders[(1,)](x, y, out, 10, GUARDED=True, BLOCK=16)
    assert out.tolist() == [0, 1, 2, 0, 1, 1, 0, 1, 2, 0]


@pytest.mark.adr("0124-D1")
def test_it_looks_at_kernels_that_decide_by_data(torch: Any) -> None:
    def run(bug: bool) -> None:
        x, y = numbers(torch, negative=bug)
        out, count = torch.zeros(1, dtype="i32"), torch.tensor([2], dtype="i32")
        sums_of_remainders[(1,)](count, x, y, out, BLOCK=8)
        assert out.item() == np.fmod(x.numpy(), 3).sum()

    words = ("kernel sums_of_remainders, rank 0", "negative remainder", "through tt.reduce at")
    twins(run, NegativeError, *words)


@pytest.mark.adr("0124-D1")
def test_a_run_that_allows_the_mistake_has_no_such_check(
    checks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Remainders, "allowed_by", Allowed.MASKED_LANES)
    for allow in ((), ("masked-lanes",)):
        with kernbench.RuntimeContext(machine="ahbm", check=True, allow=allow) as torch:
            x, y = numbers(torch, negative=True)
            out = torch.zeros(10, dtype="i32")
            remainders[(1,)](x, y, out, 10, GUARDED=False, BLOCK=16)
            if allow:
                assert out.numpy()[:5].tolist() == [0, 1, 2, 0, 1]
            else:
                with pytest.raises(NegativeError):
                    out.numpy()


@pytest.mark.adr("0124-D1")
def test_each_module_of_checks_is_in_the_registry_and_known_to_nothing_else() -> None:
    modules = {path.stem for path in (SANITIZER / "checks").glob("[!_]*.py")}
    assert modules == {kind.__module__.rpartition(".")[2] for kind in registry.CHECKS}
    for path in SANITIZER.rglob("*.py"):
        imported = [
            node.module or ""
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
        ]
        knows = [item for item in imported if item.startswith("kernbench.sanitizer.checks")]
        assert not knows or path.name == "registry.py", f"{path} imports {knows}"
