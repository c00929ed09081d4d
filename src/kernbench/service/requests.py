"""Requests to a service: each is one command, in a process of its own, with limits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernbench.errors import KernbenchError, UsageError

MOST_SOURCE_BYTES = 1 << 20
_MOST_SAID = 4000
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_SOURCES, _RUNS = "sources", "runs"


class RequestError(KernbenchError):
    """A request that a command did not answer; the text is what the command said."""


class Workspace:
    """The folder of a service: sources that it was sent, and the runs that it has kept."""

    def __init__(self, folder: Path, *, timeout_s: float = 600, memory_gb: float = 16) -> None:
        """Use a folder, made if it is not there; limits are those of each command."""
        self.folder = folder
        self._timeout_s, self._memory_kib = timeout_s, int(memory_gb * 1e9 / 1024)
        for name in (_SOURCES, _RUNS):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def source(self, text_or_path: str, suffix: str = ".py") -> Path:
        """Return a file with this text; one line that names a file is that file.

        Raises:
            UsageError: It is too long, or names no file.
        """
        if "\n" not in text_or_path.strip():
            path = Path(text_or_path.strip()).expanduser()
            if not path.exists():
                raise UsageError(f"no file {path}: send a path of this machine, or the source text")
            return path.resolve()
        if len(text_or_path.encode()) > MOST_SOURCE_BYTES:
            raise UsageError(
                f"a source of {len(text_or_path.encode()):,} bytes; at most {MOST_SOURCE_BYTES:,}"
            )
        descriptor, name = tempfile.mkstemp(suffix, "", self.folder / _SOURCES)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text_or_path)
        return Path(name)

    def run_file(self, name: str) -> Path:
        """Return the file of a kept run by its name.

        Raises:
            UsageError: It is no name of a run.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a run: letters, digits, '.', '_' and '-'")
        return self.folder / _RUNS / f"{name}.run"

    def kept(self, name: str) -> Path:
        """Return the file of a run that is there.

        Raises:
            UsageError: There is none of that name.
        """
        path = self.run_file(name)
        if not path.exists():
            runs = sorted(item.stem for item in path.parent.glob("*.run"))
            raise UsageError(f"no run {name!r}; kept: {', '.join(runs) or 'none'}")
        return path

    def ask(self, command: str, *arguments: str) -> Any:
        """Return the JSON that a command writes.

        Raises:
            RequestError: The command failed, took too long or used too much memory.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            out = Path(folder) / "answer.json"
            line = [sys.executable, "-m", "kernbench", command, "--json", str(out), *arguments]
            with subprocess.Popen(
                ["sh", "-c", 'ulimit -v "$0"; exec "$@"', str(self._memory_kib), *line],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            ) as process:
                try:
                    printed, said = process.communicate(timeout=self._timeout_s)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise RequestError(
                        f"kernbench {command} took longer than {self._timeout_s:g} s and was ended"
                    ) from None
            if process.returncode or not out.exists():
                text = (said.strip() or printed.strip())[-_MOST_SAID:]
                raise RequestError(text or f"kernbench {command} ended with {process.returncode}")
            return json.loads(out.read_text(encoding="utf-8"))
