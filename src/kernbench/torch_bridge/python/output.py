"""What ranks print: which ranks' output is shown, with which prefix, and the log of each node."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, TextIO

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE, Process


class RankOutput:
    """Replaces ``sys.stdout`` or ``sys.stderr``; each rank's lines stay whole.

    ``shown`` are the ranks that are shown, None for all. Output under a debugger, or from outside
    of ranks, is always shown.
    """

    def __init__(
        self,
        stream: Any,
        shown: Collection[int] | None,
        with_rank: bool,
        logs: NodeLogs | None = None,
        name: str = "stdout",
    ) -> None:
        self._stream, self._name = stream, name
        self._logs = logs
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
        if self._logs is not None:
            self._logs.write(process, self._name, text)
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


class NodeLogs:
    """A file per node in a folder, ``node0.log`` and so on: all lines of its ranks, with ranks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, TextIO] = {}
        self._kept: dict[tuple[int, int, str], str] = {}
        """Incomplete lines, by node, rank and stream."""

    def write(self, process: Process, stream: str, text: str) -> None:
        """Add what a rank printed to a stream, its whole lines now."""
        key = process.node, process.rank, stream
        *lines, rest = (self._kept.pop(key, "") + text).split("\n")
        if rest:
            self._kept[key] = rest
        if lines:
            self._write(process.node, process.rank, lines)

    def close(self) -> None:
        """Write the lines that are still incomplete, and close the files."""
        for (node, rank, _), rest in sorted(self._kept.items()):
            self._write(node, rank, [rest])
        self._kept.clear()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _write(self, node: int, rank: int, lines: list[str]) -> None:
        file = self._files.get(node)
        if file is None:
            path = self._folder / f"node{node}.log"
            file = self._files[node] = path.open("w", encoding="utf-8")
        file.writelines(f"[rank {rank}] {line}\n" for line in lines)


def install(
    patches: Patches, shown: Collection[int] | None, with_rank: bool, log_dir: Path | None = None
) -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` during a run."""
    if shown is None and not with_rank and log_dir is None:
        return
    logs = None if log_dir is None else NodeLogs(log_dir)
    if logs is not None:
        patches.on_close(logs.close)
    for name in ("stdout", "stderr"):
        output = RankOutput(getattr(sys, name), shown, with_rank, logs, name)
        patches.set(sys, name, output)
        patches.on_close(output.end)
