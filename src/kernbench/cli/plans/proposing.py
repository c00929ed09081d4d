"""Times layouts by their parts: those of each size of TP, which share parts, in a process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from kernbench.errors import InternalError, KernbenchError
from kernbench.plans import PlanTimes

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.plans import Job, Layout, ModelShape, TimedLayout

_FEW = 50
"""So many layouts are timed here: a process takes a second to start."""


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """Layouts that fit, to be timed by their parts."""

    model: ModelShape
    job: Job
    machine: Machine
    fitting: Sequence[tuple[Layout, dict[str, float]]]
    """The layouts, each with the bytes of the fullest rank by kind."""

    def timed(self, say: Callable[[str], None]) -> tuple[list[TimedLayout], list[str]]:
        """Return the layouts with their times, and why others could not be timed.

        ``say`` hears how far it has come.
        """
        sizes = dict.fromkeys(layout.tp for layout, _ in self.fitting)
        if len(sizes) == 1 or len(self.fitting) <= _FEW:
            return self._timed_here(say)
        parts = [
            replace(self, fitting=[pair for pair in self.fitting if pair[0].tp == size])
            for size in sizes
        ]
        say(f"{len(self.fitting)} layouts, TP {', '.join(map(str, sizes))} at the same time")
        running: list[subprocess.Popen[bytes]] = []
        workers = min(len(sizes), len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(workers) as pool:
            started = [pool.submit(part._timed_apart, running) for part in parts]
            try:
                results = [future.result() for future in started]
            finally:
                for future in started:
                    future.cancel()
                for process in running:
                    process.kill()
        timed, failed = (list(chain.from_iterable(kind)) for kind in zip(*results, strict=True))
        return timed, failed

    def _timed_here(self, say: Callable[[str], None]) -> tuple[list[TimedLayout], list[str]]:
        times = PlanTimes(self.model, self.job, self.machine)
        timed: list[TimedLayout] = []
        failed: dict[str, None] = {}
        for number, (layout, values) in enumerate(self.fitting):
            say(f"{number} of {len(self.fitting)} layouts, {layout.label}")
            try:
                timed.append(times.time(layout, values))
            except KernbenchError as error:
                failed[f"{layout.label}: {error}"] = None
        return timed, list(failed)

    def _timed_apart(
        self, running: list[subprocess.Popen[bytes]]
    ) -> tuple[list[TimedLayout], list[str]]:
        # No pool of multiprocessing: it would import the script of who calls kernbench.plan again.
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        running.append(process)
        out, err = process.communicate(pickle.dumps(self))
        running.remove(process)
        if process.returncode:
            raise InternalError(f"timing layouts failed: {err.decode(errors='replace')}")
        result: tuple[list[TimedLayout], list[str]] = pickle.loads(out)
        return result


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer)._timed_here(lambda _: None)))
