"""What a run gains by each key of its machine: the run done again with a tenth more of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypedDict

from rich.text import Text

from kernbench.analysis import WHOLE_RUN, RunPart, TableColumn, fitting_table
from kernbench.errors import KernbenchError, UsageError
from kernbench.hardware import Machine, changed_machine, leaves
from kernbench.op_log import energy_of
from kernbench.report import cost_usd, format_ns
from kernbench.retiming.retiming import Retiming

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.op_log import OpLog
    from kernbench.saved import SavedRun

_NOT_TIMES = (
    "sizes", "scenario.", "usd_per_device_hour", "area_mm2.", "storage.", "sip_overrides.",
)  # fmt: skip
_LIMITS = ("sip.power.board_w", "sip.power.cap_w", "sip.power.clock_share")
_STILL = 1e-5
"""A change of the run's time, as a share, that is no change."""


class KeySensitivity(TypedDict):
    """What a run gains by more of one key."""

    key: str
    before: float
    after: float
    gain_ns: float
    """How much sooner the run ends then; below 0 where it ends later."""
    gain_share: float
    """The same, of the run's time."""
    watts: float | None
    """How much more a device draws then on average; None for a machine that says nothing of it."""
    area_mm2: float | None
    """How much more area it takes; None where ``area_mm2`` of the machine does not have the key."""
    usd: float | None
    """How much more the run costs, at the price of a device and hour."""


class Sensitivity(TypedDict):
    """What a run gains by each key of its machine, the most sensitive first."""

    program: str
    machine: str
    ranks: int
    part: str
    """The part of the run that all numbers are of; empty for all of it."""
    time_ns: float
    by: float
    keys: list[KeySensitivity]
    at_limit: list[str]
    """Keys of which the machine cannot have more."""


def sensitivity(
    saved: SavedRun,
    by: float = 0.1,
    among: str = "",
    step: Callable[[int, int], None] = lambda done, whole: None,
    part: RunPart = WHOLE_RUN,
) -> Sensitivity:
    """Return what a saved run gains by more of each key, by doing it again with each.

    ``by`` is the share that each key grows by; whole numbers grow to the next one at the least.
    ``among`` begins the keys that are tried; ``step`` is told how many of how many are done.
    All numbers are of ``part`` of the run.

    Raises:
        UsageError: The run cannot be retimed, or no key begins so.
    """
    if by <= 0:
        raise UsageError(f"keys must grow by more than 0 %, but got {100 * by:g} %")
    keys = [(key, value) for key, value in _keys(saved) if key.startswith(among)]
    if not keys:
        raise UsageError(f"{saved.path}: no number of {saved.machine.name} begins with {among!r}")
    whole_ns = part.time_ps(saved.log) / 1000
    watts = _watts(saved.log, saved.machine, saved.ranks, part)
    if not whole_ns:
        raise UsageError(f"{saved.path}: nothing in this run takes time")
    key_sensitivities: list[KeySensitivity] = []
    at_limit: list[str] = []
    area = saved.machine.spec.area_mm2
    price = saved.machine.spec.usd_per_device_hour
    for done, (key, value) in enumerate(keys):
        step(done, len(keys))
        more = _more(value, by)
        try:
            machine = changed_machine(saved.machine, {key: more})
        except KernbenchError:
            at_limit.append(key)
            continue
        retiming = Retiming(saved, machine)
        with retiming.context:
            retiming.work()
        log = retiming.context.run.op_log
        gain_ns = whole_ns - part.time_ps(log) / 1000
        drawn = _watts(log, machine, saved.ranks, part)
        has_watts = watts is not None and drawn is not None
        key_sensitivities.append(
            {
                "key": key,
                "before": value,
                "after": more,
                "gain_ns": gain_ns,
                "gain_share": gain_ns / whole_ns,
                "watts": drawn - watts if has_watts else None,  # type: ignore[operator]
                "area_mm2": float(area[key]) * (more / value - 1) if key in area else None,
                "usd": None if price is None else cost_usd(float(price), saved.ranks, -gain_ns),
            }
        )
    key_sensitivities.sort(
        key=lambda key_sensitivity: (-abs(key_sensitivity["gain_ns"]), key_sensitivity["key"])
    )
    return {
        "program": saved.program,
        "machine": saved.machine.name,
        "ranks": saved.ranks,
        "part": part.said,
        "time_ns": whole_ns,
        "by": by,
        "keys": key_sensitivities,
        "at_limit": at_limit,
    }


def _keys(saved: SavedRun) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a machine that may move a run, with their values."""
    kinds = {instance.template.kind for instance in saved.log.instances}
    is_pytorch = saved.actions is not None and "pytorch" in saved.actions.described
    for key, value in leaves(saved.machine.spec.model_dump(mode="json")):
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            continue
        if key.startswith(_NOT_TIMES) or (key.startswith("sip.power.") and key not in _LIMITS):
            continue
        if key.startswith(("links.", "collectives.")) and "collective" not in kinds:
            continue
        if key.startswith("host.") and not is_pytorch:
            continue
        yield key, value


def _more(value: int | float, by: float) -> int | float:
    if isinstance(value, int):
        return max(round(value * (1 + by)), value + 1)
    return float(Fraction(str(value)) * Fraction(str(1 + by)))


def _watts(log: OpLog, machine: Machine, ranks: int, part: RunPart) -> float | None:
    energy = energy_of(log, machine, ranks, within=part.find and part.find(log))
    return None if energy is None else energy["average_w"]


_COLUMNS = (
    TableColumn("key", is_number=False),
    TableColumn("from"),
    TableColumn("to"),
    TableColumn("gain"),
    TableColumn("of run"),
    TableColumn("draws"),
    TableColumn("mm²"),
    TableColumn("USD"),
)


def print_sensitivity(sensitivity: Sensitivity, console: Console, most: int = 20) -> None:
    """Print the most sensitive keys, how many do nothing, and which cannot be more."""
    ranks = sensitivity["ranks"]
    console.print(
        Text(
            f"\n{ranks} rank{'s' if ranks != 1 else ''} of {sensitivity['machine']}, "
            f"{sensitivity['part'] or format_ns(sensitivity['time_ns'])}; "
            f"each key alone {100 * sensitivity['by']:g} % more:\n"
        )
    )
    moved = [
        key_sensitivity
        for key_sensitivity in sensitivity["keys"]
        if abs(key_sensitivity["gain_share"]) > _STILL
    ]
    console.print(fitting_table(console, _COLUMNS, map(_cells, moved[:most])))
    still = len(sensitivity["keys"]) - len(moved)
    lines = []
    if len(moved) > most:
        lines.append(f"{len(moved) - most} more keys move the run less; --json has them")
    lines.append(f"{still} keys do not move it")
    if sensitivity["at_limit"]:
        lines.append(f"the machine refuses more of: {', '.join(sensitivity['at_limit'])}")
    if all(key_sensitivity["area_mm2"] is None for key_sensitivity in sensitivity["keys"]):
        lines.append("area_mm2 of the machine's file says what keys cost in area")
    console.print(Text("\n" + "\n".join(lines)))


def _cells(key_sensitivity: KeySensitivity) -> list[str]:
    gain = key_sensitivity["gain_ns"]
    return [
        key_sensitivity["key"],
        f"{key_sensitivity['before']:g}",
        f"{key_sensitivity['after']:g}",
        f"{'-' if gain < 0 else ''}{format_ns(abs(gain))}",
        f"{100 * key_sensitivity['gain_share']:+.1f}%",
        "" if key_sensitivity["watts"] is None else f"{key_sensitivity['watts']:+.1f} W",
        "" if key_sensitivity["area_mm2"] is None else f"{key_sensitivity['area_mm2']:+.2g}",
        "" if key_sensitivity["usd"] is None else f"{key_sensitivity['usd']:+.2g}",
    ]
