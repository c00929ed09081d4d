"""Answers of programs that were run before, in a file with a line of JSON for each.

Running all programs of a file of rows takes an hour or more. What has been run is kept as it comes,
so that an interrupted campaign goes on, and a page can be made again in minutes. The file says with
which commit each program was run; it does not know whether a later one would answer otherwise.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from hashlib import md5
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernbench.errors import UsageError
from kernbench.inputs import MOST_JSON_BYTES, read_text
from kernbench.plans import PROGRAM
from validation.programs.program import LOOPS, Program

PROGRAMS = Path("build/programs")
"""Where ``make programs`` puts what it fetches."""
_LONGEST = 160
_SAID_IF_SET = ("nodes", "folded_to", "is_before_2_8", "of_kernels", "installed", "reads_first")
"""What is part of a program's name only where it is set: names are older than it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFiles:
    """Where scripts of others are, and which file keeps answers, if one does."""

    folder: Path = PROGRAMS
    kept: Path | None = None
    runs: tuple[str, ...] | None = None
    """Programs whose words begin so are run where the file lacks them; None: all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAnswer:
    """What running a program gave."""

    step_us: float = 0.0
    """The modeled time of a step in microseconds; 0 where there is none."""
    first_us: float = 0.0
    """The modeled time that its line before says, where it has one (``Program.reads_first``)."""
    host_share: float = 0.0
    """Share of the step in which the devices waited for their hosts, from 0 to 1."""
    why_not: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)
    """What the devices' time is of, by kind of kernels (``kernbench.report.kind_of``)."""
    peak_bytes: float = 0.0
    """The bytes of the rank whose allocator reserved most; 0 where it is not known."""


def forget(path: Path, begins: tuple[str, ...]) -> None:
    """Drop the answers of programs whose words begin so, which are run again."""
    lines = [line for line in read_kept(path) if not str(line["program"]).startswith(begins)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


class KeptAnswers:
    """The answers in a file, by program and machine; a missing file has none.

    Raises:
        UsageError: The file cannot be read or written, or a line of it is no answer.
    """

    def __init__(self, files: ProgramFiles) -> None:
        assert files.kept is not None
        self._path = files.kept
        self._runs = files.runs
        self._folder = str(files.folder.absolute())
        self._known = {line["id"]: _answer(line) for line in read_kept(self._path)}

    def get(self, program: Program, machine: str) -> ProgramAnswer | None:
        """Return the answer of a program on a machine, None if it was not run."""
        return self._known.get(self._id(program, machine))

    def has_run(self, program: Program) -> bool:
        """Return whether a program that the file lacks is run."""
        return self._runs is None or self._placed(_words(program)).startswith(self._runs)

    def keep(self, program: Program, machine: str, answer: ProgramAnswer) -> None:
        """Add an answer to the file: a line in one piece, since others may write lines, too."""
        line = {
            "program": self._placed(_words(program))[:_LONGEST],
            "ranks": program.ranks,
            "machine": machine,
            "step_us": round(answer.step_us, 3),
            **({"first_us": round(answer.first_us, 3)} if answer.first_us else {}),
            "host_share": round(answer.host_share, 3),
            "why_not": answer.why_not,
            **({"shares": answer.shares} if answer.shares else {}),
            **({"peak_bytes": answer.peak_bytes} if answer.peak_bytes else {}),
            "commit": commit(),
            "date": datetime.date.today().isoformat(),
            "id": self._id(program, machine),
        }
        self._known[line["id"]] = answer
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")
        except OSError as error:
            raise UsageError(f"{self._path}: cannot be written: {error}") from None

    def _id(self, program: Program, machine: str) -> str:
        """Return a name of a program on a machine, wherever its files lie.

        A loop of ours that has changed is another program.
        """
        said = [
            f"{field.name}={getattr(program, field.name)!r}"
            for field in fields(program)
            if field.name not in _SAID_IF_SET or getattr(program, field.name) != field.default
        ]
        if program.script.is_relative_to(LOOPS) or program.script == PROGRAM:
            said.append(program.script.read_text(encoding="utf-8"))
        text = self._placed(" ".join((*said, machine)))
        return md5(text.encode(), usedforsecurity=False).hexdigest()[:16]

    def _placed(self, text: str) -> str:
        for path, name in ((self._folder, "PROGRAMS"), (LOOPS, "LOOPS"), (PROGRAM, "PLANS")):
            text = text.replace(str(path), name)
        return text


def _words(program: Program) -> str:
    return " ".join((program.module or program.script.name, *program.args))


def read_kept(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of kept answers; none if it does not exist.

    Raises:
        UsageError: It cannot be read, or a line is no answer.
    """
    try:
        lines = read_text(path, MOST_JSON_BYTES).splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    return [_line(text, f"{path}:{number}") for number, text in enumerate(lines, 1)]


_KEYS: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "step_us": (int, float),
    "host_share": (int, float),
    "why_not": str,
    "commit": str,
    "date": str,
}


def _line(text: str, where: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if not isinstance(line, dict) or not all(
        isinstance(line.get(key), kind) for key, kind in _KEYS.items()
    ):
        raise UsageError(
            f"{where} is no kept answer of a program (JSON with {', '.join(_KEYS)}); remove the "
            "line, and its program is run again"
        )
    return line


def _answer(line: Mapping[str, Any]) -> ProgramAnswer:
    return ProgramAnswer(
        step_us=line["step_us"],
        first_us=line.get("first_us", 0.0),
        host_share=line["host_share"],
        why_not=line["why_not"],
        shares=line.get("shares", {}),
        peak_bytes=line.get("peak_bytes", 0.0),
    )


def said_of(path: Path) -> str:
    """Return what a page says about a file of kept answers: how many programs, when, with what."""
    lines = read_kept(path)
    if not lines:
        return "no program was run"
    by_day = sorted(lines, key=lambda line: str(line["date"]))
    commits = list(dict.fromkeys(line["commit"] for line in by_day))
    days = sorted({line["date"] for line in lines})
    programs = len({line["id"] for line in lines})
    shown = commits[0] if len(commits) == 1 else f"{len(commits)} commits up to {commits[-1]}"
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{programs} programs were run with {shown} ({when}) and are kept in {path.name}"


@cache
def commit() -> str:
    """Return the commit of kernbench, with a ``+`` where files differ; its version elsewhere."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *words], check=False, capture_output=True, text=True
        )
        return done.stdout.strip() if not done.returncode else ""

    try:
        text = git("rev-parse", "--short=8", "HEAD")
        changed = text and git(
            "status", "--porcelain", "--untracked-files=no", str(here.parents[1])
        )
    except OSError:
        text = changed = ""
    return f"{text}{'+' if changed else ''}" if text else version("kernbench")
