"""What the ranks of a folded run did, done again by all ranks, without their programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.errors import UsageError
from kernbench.retiming.retiming import player_of
from kernbench.runtime_api import KernelEngine, RuntimeContext, Timetable, unfolded

if TYPE_CHECKING:
    from kernbench.commands import Tf32
    from kernbench.op_log import OpLog

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
