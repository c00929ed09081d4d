"""What ranks print: which ranks' output is shown, and with which prefix."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE, Process


class RankOutput:
    """Replaces ``sys.stdout`` or ``sys.stderr``; each rank's lines stay whole.

    ``shown`` are the ranks that are shown, None for all. Output under a debugger, or from outside
    of ranks, is always shown.
    """

    def __init__(self, stream: Any, shown: Collection[int] | None, with_rank: bool) -> None:
        self._stream = stream
        self._shown = shown
        self._with_rank = with_rank
        self._kept: dict[int, str] = {}
        """Incomplete lines, by rank."""
        self._open: int | None = None
        """The rank whose incomplete line is on the screen."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        process = HERE.process
        if process is None or process.rank_of_run is None:
            return int(self._stream.write(text))
        if not self._is_shown(process):
            return len(text)
        if not self._with_rank:
            return int(self._stream.write(text))
        whole, newline, rest = (self._kept.pop(process.rank, "") + text).rpartition("\n")
        if rest:
            self._kept[process.rank] = rest
        if newline:
            for line in whole.split("\n"):
                self._begin(process.rank)
                self._stream.write(line + "\n")
                self._open = None
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        process = HERE.process
        if process is not None and process.rank in self._kept:
            self._begin(process.rank)
            self._stream.write(self._kept.pop(process.rank))
            self._open = process.rank
        self._stream.flush()

    def end(self) -> None:
        """Show the lines that are still incomplete."""
        for rank, text in sorted(self._kept.items()):
            self._begin(rank)
            self._stream.write(text + "\n")
            self._open = None
        self._kept.clear()

    def _begin(self, rank: int) -> None:
        if self._open == rank:
            return
        self._stream.write(f"{'' if self._open is None else chr(10)}[rank {rank}] ")

    def _is_shown(self, process: Process) -> bool:
        shown = self._shown
        return shown is None or process.rank in shown or sys.gettrace() is not None


def install(patches: Patches, shown: Collection[int] | None, with_rank: bool) -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` during a run."""
    if shown is None and not with_rank:
        return
    for name in ("stdout", "stderr"):
        output = RankOutput(getattr(sys, name), shown, with_rank)
        patches.set(sys, name, output)
        patches.on_close(output.end)
