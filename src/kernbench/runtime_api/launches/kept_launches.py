"""What is kept of a launch of a kernel, so that it can be timed on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from kernbench.kernel_time import Tables
from kernbench.policy import DPPolicy
from kernbench.runtime_api.base.actions import Keeper
from kernbench.runtime_api.base.rank_state import PLAIN_LAUNCH, LaunchAttributes
from kernbench.runtime_api.launches.kernel_engine import KernelEngine, Policies
from kernbench.runtime_api.launches.kernel_plan import KernelEntry, KernelPlan
from kernbench.triton_backend import build_binary

Launched = tuple[KernelPlan, "Policies", str, LaunchAttributes, "Tables"]
"""A kernel with its grid and integers, where its tensors lie, its name, attributes and tables."""


def describe_launch(
    keeper: Keeper,
    plan: KernelPlan,
    policies: Policies,
    name: str,
    attributes: LaunchAttributes | None,
    tables: Tables,
) -> dict[str, Any]:
    """Return what a launch is, in plain values."""
    binary = plan.kernel.binary
    attributes = attributes or PLAIN_LAUNCH
    return {
        "kind": "kernel",
        "text": keeper.text(
            binary,
            lambda: {
                "ttir": binary.ttir,
                "name": binary.name,
                "num_warps": binary.num_warps,
                "num_stages": binary.num_stages,
                "constants": binary.constants,
                "stands_for_library": binary.stands_for_library,
                "matrix_side": binary.matrix_side,
            },
        ),
        "grid": plan.grid,
        "ints": list(plan.ints.items()),
        "name": name,
        "policies": [(index, asdict(policy)) for index, policy in policies],
        "follows": attributes.follows,
        "cached": attributes.cached,
        "tables": tables,
    }


def launch_of(
    engine: KernelEngine, entries: dict[int, KernelEntry], texts: Any, value: Mapping[str, Any]
) -> Launched:
    """Return the launch that was described, planned anew.

    ``entries`` are the kernels so far, by the numbers of their texts.
    """
    number = value["text"]
    entry = entries.get(number)
    if entry is None:
        text = dict(texts[number])
        text["constants"] = tuple(map(tuple, text["constants"]))
        entry = entries[number] = KernelEntry(build_binary(**text))
    grid = tuple(value["grid"])
    ints = dict(map(tuple, value["ints"]))
    key = (grid, tuple(ints.items()))
    plan = entry.plans.get(key)
    if plan is None:
        plan = entry.plans[key] = entry.plan_of(engine, grid, ints)
    assert isinstance(plan, KernelPlan)
    attributes = LaunchAttributes(
        follows=value["follows"],
        cached=tuple([(name, Fraction(share)) for name, share in value["cached"]]),
    )
    return (
        plan,
        tuple([(index, DPPolicy(**policy)) for index, policy in value["policies"]]),
        value["name"],
        attributes,
        tuple(map(tuple, value["tables"])),
    )
