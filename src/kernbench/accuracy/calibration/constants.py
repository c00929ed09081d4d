"""Which numbers of a machine file may be fitted, and to rows of which category.

What a vendor states is never fitted. GEMMs determine the overhead of kernels and how far engines
and caches are from peak; elementwise rows how much of HBM's bandwidth a stream reaches; collectives
what each protocol of the library costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernbench.accuracy.rows import Category


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One number of a machine file that is fitted to measurements."""

    key: str
    """Its path in the file, e.g. ``sip.front_end_us``."""
    tied: tuple[str, ...] = ()
    """Numbers that measurements cannot distinguish from it: they get the same value."""
    is_share: bool = False
    """Whether it is at most 1."""


_GEMM = (
    Constant(key="sip.front_end_us"),
    Constant(key="sip.queued_front_end_us"),
    Constant(key="sip.pe.gemm.efficiency", is_share=True),
    Constant(key="sip.cube.hbm_short_run_efficiency", is_share=True),
    Constant(key="sip.cube.hbm_latency_ns"),
    Constant(key="sip.cache.latency_ns"),
    Constant(key="sip.cache.bandwidth_gbps"),
    Constant(key="sip.sustained.clock_loss", is_share=True),
)
_MEMBOUND = (Constant(key="sip.cube.hbm_efficiency", is_share=True),)
# Of a protocol; whatever else a file gives it (tails, limits) is the library's, not fitted.
_PROTOCOL = ("launch_us", "launch_per_rank_us", "step_us", "round_us", "bandwidth_share", "us",
             "us_per_rank")  # fmt: skip


def constants_of(category: Category, data: Mapping[str, Any]) -> tuple[Constant, ...]:
    """Return the constants of a machine file that rows of a category determine.

    ``data`` is the file as mappings. Constants that the file leaves out (a device without a cache,
    for example) are not added.
    """
    offered: tuple[Constant, ...] = ()
    if category is Category.GEMM:
        offered = _GEMM
    elif category is Category.MEMBOUND:
        offered = _MEMBOUND
    elif category is Category.COLLECTIVES:
        offered = tuple(_of_collectives(data.get("collectives") or {}, "collectives"))
    return tuple(
        Constant(
            key=each.key,
            tied=tuple(key for key in each.tied if number_at(data, key) is not None),
            is_share=each.is_share,
        )
        for each in offered
        if number_at(data, each.key) is not None
    )


def _of_collectives(data: Mapping[str, Any], path: str) -> Iterator[Constant]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _of_collectives(value, f"{path}.{key}")
        elif key in _PROTOCOL:
            yield Constant(key=f"{path}.{key}", is_share=key == "bandwidth_share")


def number_at(data: Mapping[str, Any], key: str) -> float | None:
    """Return the number at a path of a machine file, None if there is none."""
    found: Any = data
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return float(found) if isinstance(found, int | float) else None
