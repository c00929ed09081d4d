"""The text of an error that says why nothing can make progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.clock.sites import user_site
from kernbench.errors import DeadlockError, exit_call

if TYPE_CHECKING:
    from kernbench.clock.handles import Handle
    from kernbench.clock.ranks import Rank
    from kernbench.clock.simulation import Simulation


def microseconds(time_ps: int) -> str:
    """Return a virtual time as errors print it.

    >>> microseconds(12_500_000)
    '12.500 us'
    """
    return f"{time_ps // 1_000_000}.{time_ps // 1000 % 1000:03d} us"


def listed(numbers: list[int]) -> str:
    """Return numbers as they are listed in a sentence.

    >>> listed([0, 1, 3]), listed([2])
    ('ranks 0, 1 and 3', 'rank 2')
    """
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def deadlock_error(simulation: Simulation, wanted: Handle | None) -> DeadlockError:
    """Return the error for an empty event queue: every rank, what it waits for, since when, where.

    ``wanted`` is what main waits for. Ranks that ended and that others wait for come first: they
    are the likely cause.
    """
    waiting = [rank for rank in simulation.ranks if rank.alive]
    now = microseconds(simulation.now_ps)
    running = [f"  {ended.describe()}" for ended in simulation.open_ended]
    if running and not waiting:
        lines = [f"nothing can end what is pending at {now}", *running]
        return DeadlockError("\n".join([*lines, *map(_ended_line, simulation.ranks)]))
    if not waiting:
        text = wanted.describe() if wanted is not None else "main"
        threads = _thread_lines(simulation.threads_of_main)
        left = "no rank and no command is left"
        return DeadlockError("\n".join([f"nothing can end {text} at {now}; {left}", *threads]))
    lines = [f"nothing can wake {listed([rank.rank_id for rank in waiting])} at {now}"]
    lines += rank_lines(simulation)
    lines += _thread_lines([thread for rank in waiting for thread in rank.threads])
    described = {id(rank.waiting_for) for rank in waiting}
    lines += [f"  {item.describe()}" for item in simulation.open_ended if id(item) not in described]
    return DeadlockError("\n".join(lines))


def idle_error(simulation: Simulation, label: str) -> DeadlockError:
    """Return the error for a rank that waits repeatedly while nothing else happens."""
    running = simulation.running
    who = "main" if running is None else f"rank {running.rank_id}"
    lines = [
        f"nothing happens any more at {microseconds(simulation.now_ps)}: {who} is at {label} at "
        f"{user_site()}, as it was very often before, and no other rank can make progress"
    ]
    others = [line for rank, line in _lines_of(simulation) if rank is not running]
    return DeadlockError("\n".join([*lines, *others]))


def rank_lines(simulation: Simulation) -> list[str]:
    """Return a line about each rank: what it waits for, or how it ended."""
    return [line for _, line in _lines_of(simulation)]


def _lines_of(simulation: Simulation) -> list[tuple[Rank, str]]:
    waiting = [rank for rank in simulation.ranks if rank.alive]
    ended = [rank for rank in simulation.ranks if not rank.alive]
    awaited = [rank.waiting_for for rank in waiting if rank.waiting_for is not None]
    missing = {other for handle in awaited for other in handle.waits_for()}
    causes = [rank for rank in ended if rank.rank_id in missing]
    others = [rank for rank in ended if rank.rank_id not in missing]
    return [
        *((rank, _ended_line(rank)) for rank in causes),
        *((rank, wait_line(rank)) for rank in waiting),
        *((rank, _ended_line(rank)) for rank in others),
    ]


def _thread_lines(threads: list[Rank]) -> list[str]:
    """Return a line about each further thread of a process that waits."""
    return [f"{wait_line(thread)}, in a thread" for thread in threads if thread.alive]


def wait_line(rank: Rank) -> str:
    """Return the line about a rank that waits, for its first turn or in a call of its own."""
    handle = rank.waiting_for
    if handle is None:
        return f"  rank {rank.rank_id}  has not begun"
    if handle.done:
        return f"  rank {rank.rank_id}  runs    {rank.site()}"
    since = microseconds(max(rank.since_ps, rank.host_ps))
    return f"  rank {rank.rank_id}  {handle.describe()}, since {since}    {rank.site()}"


def _ended_line(rank: Rank) -> str:
    match rank.error:
        case None:
            how = "finished"
        case SystemExit() as end:
            how = f"called {exit_call(end)}"
        case error:
            how = f"raised {type(error).__name__}"
    return f"  rank {rank.rank_id}  {how} at {microseconds(rank.ended_ps or 0)}"
