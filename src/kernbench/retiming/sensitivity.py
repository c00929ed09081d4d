"""What a run gains by each key of its machine: the run done again with a tenth more of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from rich.text import Text

from kernbench.analysis import WHOLE_RUN, RunPart, TableColumn, fitting_table
from kernbench.errors import KernbenchError, UsageError
from kernbench.hardware import Machine, changed_machine, leaves, set_keys
from kernbench.op_log import OpLog, Template, energy_of
from kernbench.report import cost_usd, format_ns
from kernbench.retiming.retiming import Retiming

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.links import Transferred
    from kernbench.retiming.host_changes import ChangedActions
    from kernbench.saved import SavedRun


class ChangedRun(NamedTuple):
    """A changed run."""

    log: OpLog
    detail: str
    """What was changed, with numbers; empty where nothing is to be said."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change of a run, or of its machine."""

    what: str
    """The change in words: ``HBM twice as fast``."""
    resources: frozenset[str] = frozenset()
    """The resources of the attribution whose time it is meant to save."""
    settings: tuple[str, ...] = ()
    """Keys of the machine that change, as ``--set`` takes them."""
    free_kernel: str = ""
    """The kernel that takes no time."""
    free_collectives: bool = False
    """Whether collectives take no time once all ranks have come: as if all of it overlapped."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys or groups of the machine with their new values, by dotted path."""
    nobody_waits: bool = False
    """Whether a collective begins for each rank when that rank comes to it."""
    acts: Callable[[SavedRun], ChangedActions] | None = None
    """Returns what ranks do instead of what they did."""

    def machine(self, machine: Machine) -> Machine:
        """Return the machine of the changed run.

        Raises:
            MachineError: It has no such key.
        """
        if self.changes:
            return changed_machine(machine, self.changes)
        return set_keys(machine, self.settings)[0] if self.settings else machine

    def applies(self, machine: Machine) -> bool:
        """Return whether a machine has what is changed; a key that it lacks is found later."""
        if not self.changes:
            return True
        ours, theirs = machine.spec, self.machine(machine).spec
        return ours.model_copy(update={"sources": {}}) != theirs

    def end_ps(self, saved: SavedRun) -> int:
        """Return when the changed run ends, by doing it."""
        return self.run(saved).log.end_ps

    def run(self, saved: SavedRun) -> ChangedRun:
        """Do the changed run."""
        changed = None if self.acts is None else self.acts(saved)
        actions, detail = changed or (None, "")
        retiming = Retiming(saved, self.machine(saved.machine), actions=actions)
        run = retiming.context.run
        if self.free_kernel:
            retiming.change_templates(_without_time(self.free_kernel))
        if self.free_collectives:
            run.network.run = _at_once(run.network.run)  # type: ignore[method-assign]
        retiming.nobody_waits = self.nobody_waits
        with retiming.context:
            retiming.work()
        return ChangedRun(run.op_log, detail)


def _without_time(name: str) -> Callable[[Template], Template]:
    """Return what makes the templates of a kernel take no time; equal ones stay one object."""
    known: dict[Template, Template] = {}

    def change(template: Template) -> Template:
        if template.name != name:
            return template
        text = known.get(template)
        if text is None:
            text = known[template] = dataclasses.replace(template, duration_ps=0, limits_ps={})
        return text

    return change


def _at_once(run: Callable[..., Transferred]) -> Callable[..., Transferred]:
    """Return what places collectives as ``run`` does, and lets them end when all have come."""

    def placed(*args: Any) -> Transferred:
        transferred = run(*args)
        last_ps = max(transferred.starts_ps)
        count = len(transferred.starts_ps)
        return dataclasses.replace(transferred, ends_ps=(last_ps,) * count, hbm_ps=(0,) * count)

    return placed


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
    key_sensitivities.sort(key=lambda item: (-abs(item["gain_ns"]), item["key"]))
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
    TableColumn("draws", only_wide=True),
    TableColumn("mm²", only_wide=True),
    TableColumn("USD", only_wide=True),
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
    moved = [row for row in sensitivity["keys"] if abs(row["gain_share"]) > _STILL]
    rows = list(map(_cells, moved[:most]))
    known = list(map(any, zip(*rows, strict=True)))
    columns = list(compress(_COLUMNS, known))
    console.print(fitting_table(console, columns, [list(compress(row, known)) for row in rows]))
    still = len(sensitivity["keys"]) - len(moved)
    lines = []
    if len(moved) > most:
        lines.append(f"{len(moved) - most} more keys move the run less; --json has them")
    lines.append(f"{still} keys do not move it")
    if sensitivity["at_limit"]:
        lines.append(f"the machine refuses more of: {', '.join(sensitivity['at_limit'])}")
    if all(row["area_mm2"] is None for row in sensitivity["keys"]):
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
