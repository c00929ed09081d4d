"""What would have to be otherwise for a run to be faster: changes of which each is tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kernbench.hardware import Machine, changed_machine, set_keys
from kernbench.retiming.retiming import Retiming

if TYPE_CHECKING:
    from kernbench.links import Transferred
    from kernbench.op_log import OpLog, Template
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
