"""Run the programs of this folder as their first lines say, and tell which give what they expect.

    python tests/field/run.py [NAME ...] [--list]

Each program is what somebody wrote who uses kernbench, cut down to what went wrong once. Its first
lines are comments: what it is, then

    # run: COMMAND          the command; {file} is the program's path (several: one after another)
    # needs: MODULE         left out where the module cannot be imported
    # expect: REGEX         must be found in what each command prints, on either stream
    # never: REGEX          must not be found
    # status: N             the exit status; 0 unless said
    # within: SECONDS       120 unless said

A command runs in an empty folder. NAME selects by a part of the path: ``libraries``, ``pinned``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
_LINE = re.compile(r"#\s*(run|needs|expect|never|status|within):\s*(.*)")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program, and what its first lines promise."""

    path: Path
    title: str
    commands: list[str]
    needs: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    never: list[str] = field(default_factory=list)
    status: int = 0
    within_seconds: float = 120.0

    @property
    def name(self) -> str:
        """Its folder and file: ``libraries/08_empty_grid``."""
        return f"{self.path.parent.name}/{self.path.stem}"


def read_program(path: Path) -> Program:
    """Read a program's first lines.

    Raises:
        ValueError: They name no command, or nothing that is expected.
    """
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line)
    said: dict[str, list[str]] = {}
    for line in lines[1:]:
        if result := _LINE.fullmatch(line):
            said.setdefault(result[1], []).append(result[2])
    if "run" not in said or not ("expect" in said or "never" in said):
        raise ValueError(f"{path}: the first lines must say '# run:' and '# expect:'")
    return Program(
        path=path,
        title=lines[0].lstrip("# "),
        commands=said["run"],
        needs=said.get("needs", []),
        expected=said.get("expect", []),
        never=said.get("never", []),
        status=int(said.get("status", ["0"])[0]),
        within_seconds=float(said.get("within", ["120"])[0]),
    )


def read_programs(folder: Path = HERE) -> list[Program]:
    """Return all programs, in the order of their names."""
    return [read_program(path) for path in sorted(folder.glob("*/[0-9][0-9]_*.py"))]


def run_program(program: Program) -> str:
    """Run a program's commands; return what is wrong, or "" where all is as expected."""
    for command in program.commands:
        with tempfile.TemporaryDirectory(prefix="kernbench-field-") as folder:
            status, said = run_command(
                command.replace("{file}", str(program.path)), folder, program.within_seconds
            )
        if wrong := judge(program, status, said):
            return f"{wrong}\n$ {command}\n{said[-2000:]}"
    return ""


def run_command(command: str, folder: str, seconds: float) -> tuple[int | None, str]:
    """Run a command in a folder; return its status, None if it did not end, and what it printed."""
    beside = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"}
    process = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        said, _ = process.communicate()
        return None, said
    return process.returncode, said


def judge(program: Program, status: int | None, said: str) -> str:
    """Return what is wrong with an end, or ""."""
    if status is None:
        return f"did not end within {program.within_seconds:g} s"
    if status != program.status:
        return f"ended with status {status}, not {program.status}"
    for pattern in program.expected:
        if not re.search(pattern, said, re.MULTILINE):
            return f"does not print {pattern!r}"
    for pattern in program.never:
        if result := re.search(pattern, said, re.MULTILINE):
            return f"prints {result[0]!r}"
    return ""


def missing(program: Program) -> list[str]:
    """Return the modules that a program needs and that cannot be imported."""
    return [name for name in program.needs if importlib.util.find_spec(name) is None]


def main(arguments: list[str] | None = None) -> int:
    """Run the programs; return 0 if each that could be run gives what it expects."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="run only programs whose path has one of these")
    parser.add_argument("--list", action="store_true", help="list the programs, run none")
    options = parser.parse_args(arguments)
    programs = [
        program
        for program in read_programs()
        if not options.names or any(name in program.name for name in options.names)
    ]
    if not programs:
        parser.error(f"no program's path has {' or '.join(options.names)}; see --list")
    if options.list:
        for program in programs:
            print(f"{program.name:50}  {program.title}")
        return 0
    ends = {"as expected": 0, "not as expected": 0, "not run": 0}
    for item in programs:
        if lacking := missing(item):
            ends["not run"] += 1
            print(f"not run          {item.name}: needs {', '.join(lacking)}", flush=True)
            continue
        start = time.monotonic()
        wrong = run_program(item)
        ends["not as expected" if wrong else "as expected"] += 1
        what = "NOT AS EXPECTED" if wrong else "as expected    "
        print(f"{what}  {item.name} ({time.monotonic() - start:.0f} s)", flush=True)
        if wrong:
            print("    " + wrong.replace("\n", "\n    "), flush=True)
    print(", ".join(f"{count} {what}" for what, count in ends.items()))
    return 1 if ends["not as expected"] else 0


if __name__ == "__main__":
    sys.exit(main())
