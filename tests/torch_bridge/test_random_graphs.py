"""Graphs of random operations on shared memory give what the same operations do one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.tiers import examples  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

ROWS = 6


@st.composite
def programs(draw: st.DrawFn) -> list[str]:
    """Lines on a list ``v`` of tensors: new ones, views, writes into either, and ones that die."""
    lines: list[str] = []
    alive = [0, 1, 2]
    count = 3
    for _ in range(draw(st.integers(4, 20))):
        a, b = (draw(st.sampled_from(alive)) for _ in "ab")
        start = draw(st.integers(0, ROWS - 1))
        kind = draw(
            st.sampled_from(["new", "new", "view", "in place", "part", "copy", "out", "drop"])
        )
        if kind == "drop" and len(alive) > 1:
            lines.append(f"v[{a}] = None")
            alive.remove(a)
            continue
        if kind in ("new", "view"):
            result = {
                "new": draw(st.sampled_from([f"v[{a}] * 2 + v[{b}]", f"v[{a}].sin()"])),
                "view": f"v[{a}].view(-1).view({ROWS}, 4)",
            }[kind]
            lines.append(f"v.append({result})")
            alive.append(count)
            count += 1
        elif kind == "in place":
            lines.append(f"v[{a}].mul_(0.5).add_(v[{b}].clone())")
        elif kind == "part":
            lines.append(f"v[{a}][{start}:].sub_(1)")
        elif kind == "copy":
            lines.append(f"v[{a}].copy_(v[{b}].flip(0))")
        elif kind == "out":
            lines.append(f"torch.add(v[{b}].cos(), 1, out=v[{a}])")
    # What a replay alone has shares memory.
    kept = draw(st.sampled_from(alive))
    lines += [f"v[{item}] = None" for item in alive if item != kept and draw(st.booleans())]
    return lines


@pytest.mark.slow
@pytest.mark.adr("0094-D1")
@examples(20, suppress_health_check=[HealthCheck.too_slow])
@given(lines=programs())
def test_a_graph_of_random_operations_is_those_operations(lines: Any) -> None:
    simulated("random_graph.py", "\n".join(lines), ROWS)
