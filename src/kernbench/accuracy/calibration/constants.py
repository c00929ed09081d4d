"""Which numbers of a machine file may be fitted.

What a source states is not. Of a file that somebody begins for a device of their own, with
``kernbench machine new``, most numbers are assumed, and rates, bandwidths and ports may be fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernbench.accuracy.rows import Category
from kernbench.hardware import FITTED, MachineSpec, leaves, source_of

_ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One number of a machine file that is fitted to measurements."""

    key: str
    """Its path in the file, e.g. ``sip.front_end_us``."""
    tied: tuple[str, ...] = ()
    """Numbers that measurements cannot distinguish from it: they get the same value."""
    is_share: bool = False
    """Whether it is at most 1."""
    is_whole: bool = False
    """Whether it is a whole number."""


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
_MEMBOUND = (
    Constant(key="sip.cube.hbm_efficiency", is_share=True),
    Constant(key="sip.cube.hbm_load_efficiency", is_share=True),
)
_RATES = (
    "sip.pe.gemm.flops_per_clock",
    "sip.pe.math.elements_per_clock",
    "sip.cube.hbm_bandwidth_gbps",
    "sip.pe.dma_port_gbps",
    "sip.die_to_die.bandwidth_gbps",
    "links.bandwidth_gbps",
    "links.latency_ns",
)
"""What a vendor may state: fitted where nobody does."""
# Of a protocol; whatever else a file gives it (tails, limits) is the library's, not fitted.
_PROTOCOL = ("launch_us", "launch_per_rank_us", "step_us", "round_us", "bandwidth_share", "us",
             "us_per_rank")  # fmt: skip


def constants_of(category: Category, data: Mapping[str, Any]) -> tuple[Constant, ...]:
    """Return the constants of a machine file that no vendor states and a category determines.

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
            key=constant.key,
            tied=tuple(key for key in constant.tied if number_at(data, key) is not None),
            is_share=constant.is_share,
        )
        for constant in offered
        if number_at(data, constant.key) is not None
    )


def rates_of(spec: MachineSpec) -> tuple[list[Constant], dict[str, str]]:
    """Return the rates of a machine that may be fitted, and those that are stated, with by whom."""
    free: list[Constant] = []
    stated: dict[str, str] = {}
    for key, value in leaves(spec.model_dump(mode="json", exclude_defaults=True)):
        if any(key == rate or key.startswith(f"{rate}.") for rate in _RATES) and value:
            source = source_of(spec, key)
            if source is None or source.startswith((_ASSUMED, FITTED)):
                free.append(rate_at(key))
            else:
                stated[key] = source
    return free, stated


def rate_at(key: str) -> Constant:
    """Return a rate as a constant."""
    return Constant(key=key, is_whole=key.rpartition(".")[0].endswith("_per_clock"))


def _of_collectives(data: Mapping[str, Any], path: str) -> Iterator[Constant]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _of_collectives(value, f"{path}.{key}")
        elif key in _PROTOCOL:
            yield Constant(key=f"{path}.{key}", is_share=key == "bandwidth_share")


def number_at(data: Mapping[str, Any], key: str) -> float | None:
    """Return the number at a path of a machine file, None if there is none."""
    value: Any = data
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return float(value) if isinstance(value, int | float) else None
