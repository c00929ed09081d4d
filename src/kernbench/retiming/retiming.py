"""From a saved run and a machine to the run that the same program makes there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kernbench.commands import Tf32
from kernbench.errors import KernbenchError, UsageError
from kernbench.hardware import Machine
from kernbench.logs import logger
from kernbench.memory import AllocationLog
from kernbench.op_log import OpLog, Template, uncollected
from kernbench.runtime_api import Folding, KernelEngine, Player, RuntimeContext, Timetable, unfolded
from kernbench.saved import Actions, SavedRun, at_other_times

_LOG = logger("run")
_MOST_NAMED = 8
_MOST_SAID = 2


class Retiming:
    """A saved run on a machine, about to be done again.

    ``context`` is the run that results; :meth:`work` is to be called inside of it. With
    ``keeps_memory`` it has the saved run's record of its memory, at the times of its own. With
    ``actions``, ranks do these instead of what they did.

    Raises:
        UsageError: The run was saved without what its ranks did, or something in it cannot be
            done again.
    """

    def __init__(
        self,
        saved: SavedRun,
        machine: Machine,
        *,
        keeps_memory: bool = False,
        actions: Actions | None = None,
    ) -> None:
        actions = actions or saved.actions
        if actions is None:
            raise UsageError(
                f"{saved.path}: this run was saved without what its ranks did; run the program "
                "again with --save"
            )
        refused = actions.described["refused"]
        if refused:
            more = f"; and {len(refused) - _MOST_SAID} more" if len(refused) > _MOST_SAID else ""
            said = "; ".join(refused[:_MOST_SAID])
            raise UsageError(f"{saved.path}: this run cannot be retimed: {said}{more}")
        for sip_id, peak in actions.described.get("peak_bytes", ()):
            if sip_id < machine.num_sips and peak > machine.sip_at(sip_id).hbm_bytes:
                room = machine.sip_at(sip_id).hbm_bytes
                raise UsageError(
                    f"{saved.path}: tensors of this run held {peak:,} bytes of SIP {sip_id} at a "
                    f"time, but a SIP of {machine.name} has {room:,} bytes of HBM"
                )
        self._saved = saved
        self._keeps_memory = keeps_memory and actions.memory_events is not None
        self._actions = actions
        self._templates: dict[int, Template] | None = None
        self._player: Player | None = None
        self._change: Callable[[Template], Template] | None = None
        self.nobody_waits = False
        """Whether a collective begins for each rank when that rank comes to it."""
        tf32: Tf32 = actions.described["tf32"]
        self.context = RuntimeContext(
            machine, saved.ranks, data=False, check=False, kernel_engine=KernelEngine(machine, tf32)
        )
        run = self.context.run
        run.remarks.append(self._remarks)
        run.actions_of = self._actions_again
        run.op_log.graphs.update(saved.graphs)
        folding = actions.described.get("folding")
        if folding is not None:
            run.folding = Folding.of(folding)
            run.op_log.running = run.folding.running
            run.remarks.append(run.folding.remarks)

    def work(self) -> None:
        """Do what all ranks did."""
        with _that_can_be(self._saved.path):
            player = self._player = player_of(self._actions)(
                self.context, self._actions, self._template_of
            )
            player.change, player.nobody_waits = self._change, self.nobody_waits
            if self._keeps_memory:
                player.keep_memory(self._actions.memory_events)
            # No code of a program runs, and what is made is the log, which stays.
            with uncollected():
                player.play()
        if self._keeps_memory:
            table, times_ps = self._saved.allocations, player.memory_times_ps
            log = AllocationLog(lambda: at_other_times(table, times_ps))
            self.context.run.op_log.allocations = log

    def change_templates(self, change: Callable[[Template], Template]) -> None:
        """Let kernels take the times of other templates than the machine's."""
        self._change = change
        launcher: Any = self.context.launcher
        template = launcher.template
        launcher.template = lambda *args, **value: change(template(*args, **value))

    def _actions_again(self) -> Actions:
        """Return what is done, to be saved with this run."""
        described = self._actions.described
        works = list(described["works"])
        if self._player is not None:
            for number, launch in self._player.kept_launches:
                works[number] = {**works[number], "launch": launch.ended_by}
        return replace(self._actions, described={**described, "works": works})

    def _template_of(self, launch: int) -> Template:
        if self._templates is None:
            self._templates = {
                instance.launch_id: instance.template for instance in self._saved.log.instances
            }
        return self._templates[launch]

    def _remarks(self) -> list[str]:
        """Return what may be otherwise if the program itself runs on this machine."""
        remarks = [
            f"the program made {_counted(count, what)}, and decides by that as it did"
            for what, count in self._actions.described["asked"].items()
        ]
        kept = list(self._player.kept) if self._player is not None else []
        if kept:
            named = ", ".join(kept[:_MOST_NAMED]) + (", ..." if len(kept) > _MOST_NAMED else "")
            remarks.append(f"kernels that decide by data take as long as they did: {named}")
        return remarks


@contextmanager
def _that_can_be(path: str) -> Iterator[None]:
    """Say of a run that it is damaged where it cannot be done again, whatever has come of that.

    What operations, kernels and collectives are in it is known to those who make them, far above
    what reads the file.
    """
    try:
        yield
    except Exception as error:
        others = [cause for cause in _causes(error) if not isinstance(cause, KernbenchError)]
        if not others:
            raise
        _LOG.debug("what %s says cannot be done again", path, exc_info=True)
        said = " ".join(str(others[0]).split())[:200]
        raise UsageError(
            f"{path} is damaged, or another kernbench has saved it: what its ranks did cannot be "
            f"done again ({said}); --log-level debug says where"
        ) from None


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for exception in error.exceptions for leaf in _causes(exception)]
    return [error]


def _counted(count: int, what: str) -> str:
    """Return a count with its plural, of which the first word is one."""
    first, _, rest = what.partition(" ")
    if count == 1:
        first = f"{first[:-3]}y" if first.endswith("ies") else first.removesuffix("s")
    return f"{count:,} {first} {rest}"


def player_of(actions: Actions) -> type[Player]:
    """Return what does again what ranks did."""
    if "pytorch" not in actions.described:
        return Player
    from kernbench.torch_bridge import torch_player

    return torch_player()


MOST_ACTIONS = 2_000_000
"""How many actions of all ranks are done again; it takes about 30 us for each."""
_WIDTH = 4


def placements_of_all(context: RuntimeContext) -> Timetable:
    """Return when the collectives of a folded run, whose actions were kept, run with all ranks.

    Raises:
        UsageError: As :func:`play_all_ranks`.
    """
    return play_all_ranks(context)[1]


def play_all_ranks(context: RuntimeContext) -> tuple[OpLog, Timetable]:
    """Let all ranks do what those of a folded run did, whose actions were kept.

    Returns the log of that, and when the collectives of the ranks that ran were.

    Raises:
        UsageError: They cannot be done again, or are too many.
    """
    run = context.run
    actions, folding = run.actions(), run.folding
    assert actions is not None
    assert folding is not None
    refused = actions.described["refused"]
    if refused:
        raise UsageError(refused[0])
    longest = max(len(actor.values) for actor in actions.actors) // _WIDTH
    if longest * folding.num_ranks > MOST_ACTIONS:
        raise UsageError(
            f"{folding.num_ranks:,} ranks with {longest:,} actions each take too long "
            f"(of more than {MOST_ACTIONS:,})"
        )
    known = {instance.launch_id: instance.template for instance in context.op_log.instances}
    every = unfolded(actions, folding)
    tf32: Tf32 = actions.described["tf32"]
    again = RuntimeContext(
        run.machine, data=False, check=False, kernel_engine=KernelEngine(run.machine, tf32)
    )
    player = player_of(actions)(again, every, known.__getitem__)
    player.num_kept = len(actions.described["meetings"])
    with again:
        player.play()
    timetable = Timetable(folding.num_ranks, again.op_log.end_ps)
    timetable.add(player.placements())
    return again.op_log, timetable
