"""Collectives in which nobody waits for another rank, to see what waiting costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.links import Asked

if TYPE_CHECKING:
    from kernbench.clock import Handle
    from kernbench.runtime_api.base.run import Run
    from kernbench.runtime_api.collectives.work import Part


class LoneCollective:
    """In place of a collective: each part takes its time from when its own rank is ready.

    That time is the one of the algorithm that is chosen on idle links, when all ranks come at once.
    """

    is_complete = False

    def __init__(self, run: Run, ranks: tuple[int, ...], times_ps: dict[Any, int]) -> None:
        self._run, self._ranks, self._times_ps = run, ranks, times_ps

    def arrive(self, position: int, part: Part, after: list[Handle]) -> None:
        """Take a rank's part; it begins once all of ``after`` have ended."""
        waiting = [handle for handle in after if not handle.done]
        left = len(waiting)

        def one_is_done(_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                part.end_after(self._time_ps(part))

        for handle in waiting:
            handle.when_done(one_is_done)
        if not waiting:
            part.end_after(self._time_ps(part))

    def _time_ps(self, part: Part) -> int:
        signature, ranks = part.signature, self._ranks
        key = (signature, part.sent, ranks)
        time_ps = self._times_ps.get(key)
        if time_ps is None:
            dtype = signature.dtype
            asked = Asked(
                signature.op,
                len(ranks),
                sum(part.sent) or signature.num_elements,
                1 if dtype is None else dtype.itemsize,
                signature.root,
            )
            selector = self._run.network.selector
            choice = selector.choose(asked, ranks, signature.algorithm, signature.protocol)
            time_ps = self._times_ps[key] = selector.bracket(asked, ranks, choice)[0]
        return time_ps
