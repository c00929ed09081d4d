"""Compare every operation of PyTorch's own database, compiled, with eager mode on the same device.

    python -m tests.conformance.run_compiled [--every N] [--first K] [--update]

Needs no checkout: PyTorch installs its database. One operation in N is taken, from the K-th on. A
process runs many operations; where it ends in one, that one has failed and another goes on with the
next. ``--update`` writes the page in ``docs``. The status is 1 if something failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.report import Outcome, build_report
from tests.conformance.suites import DOCS

PROGRAM = Path(__file__).resolve().parents[1] / "torch_bridge/programs/operations_compiled.py"
PAGE = DOCS / "conformance-compiled.md"
STUCK_S = 120.0
"""After so much time of a CPU without an outcome, a process is ended: a busy machine ends none."""
LONGEST = 8
"""How many times as long it may take at all: one that waits for itself takes no time of a CPU."""


@dataclass(frozen=True)
class Heading:
    """What the page says of the campaign."""

    how: str
    title: str = "Conformance of compiled operations"
    command: str = "make conformance-compiled ARGS=--update"
    explained: tuple[tuple[str, str], ...] = (
        ("of another shape", "eager mode gives statistics that nobody uses as the CPU does"),
        ("stride", "a result lies otherwise in memory than the compiler expects"),
        ("fake tensor call", "`tensor_split` with indices on the device, as a GPU refuses it too"),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; return 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--every", type=_positive, default=1, help="one operation in so many")
    parser.add_argument("--first", type=int, default=0, help="which one is the first")
    parser.add_argument("--update", action="store_true", help="write the page")
    options = parser.parse_args(arguments)
    if not 0 <= options.first < options.every:
        parser.error(f"--first {options.first} is not from 0 to {options.every - 1}, below --every")
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernbench-compiled-") as name:
        outcomes = run(options.every, options.first, Path(name))
    took_s = time.monotonic() - began_s
    for case, (outcome, reason) in outcomes.items():
        if outcome == "failed":
            print(f"{case}: {reason}")
    counts = [[outcome.outcome for outcome in outcomes.values()].count(kind) for kind in _KINDS]
    print(", ".join(f"{count} {kind}" for count, kind in zip(counts, _KINDS, strict=True)))
    if options.update:
        PAGE.write_text(page(outcomes, options.every, options.first, took_s))
    return 1 if counts[1] else 0


_KINDS = ("passed", "failed", "skipped")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be 1 or more")
    return number


def run(every: int, first: int, folder: Path) -> dict[str, Outcome]:
    """Run the program until it has seen all operations; return outcomes by case."""
    path = folder / "outcomes"
    lines: list[list[str]] = []
    num_seen = 0
    while True:
        path.write_text("")
        log = run_once([every, first, num_seen], path, folder)
        datas = [json.loads(line) for line in path.read_text().splitlines()]
        lines += datas
        if ["all", "", ""] in datas:
            # An outcome comes after the note that the case began.
            last = {case: rest for case, *rest in lines if case != "end"}
            return {
                case: Outcome(outcome, reason)
                for case, (outcome, reason) in last.items()
                if outcome in _KINDS
            }
        if not datas:
            sys.exit(f"the program ended before its first case:\n{log[-2000:]}")
        # The operation in which it ended is not tried again.
        num_seen += sum(case == "end" for case, _, _ in datas) + 1


def run_once(numbers: list[int], path: Path, folder: Path) -> str:
    """Run the program until it ends, or writes nothing for long; return what it printed."""
    command, environment = command_of(numbers, path, folder)
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        seen, since, spent_s = -1, 0.0, 0.0
        while True:
            size = path.stat().st_size
            if size > seen:
                seen, since, spent_s = size, time.monotonic(), cpu_s(process.pid)
            try:
                process.wait(STUCK_S / 8)
            except subprocess.TimeoutExpired:
                waited_s = time.monotonic() - since
                if cpu_s(process.pid) - spent_s < STUCK_S and waited_s < LONGEST * STUCK_S:
                    continue
                process.kill()
                process.wait()
            return log.read_text()


def command_of(numbers: list[int], path: Path, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs the program, and its environment."""
    command = [sys.executable, "-m", "kernbench", "torchrun", "--machine", "h100-sxm", str(PROGRAM)]
    command += [*map(str, numbers), str(path)]
    environment = {
        **os.environ,
        "KERNBENCH_COMPILE": "inductor",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    return command, environment


def cpu_s(pid: int) -> float:
    """Return how much time of a CPU a process has taken."""
    # Behind the name, which may hold anything: user and system time.
    said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(said[11]) + int(said[12])) / os.sysconf("SC_CLK_TCK")


def page(outcomes: dict[str, Outcome], every: int, first: int, took_s: float) -> str:
    """Return the page, in Markdown."""
    import torch

    share = (
        "every operation"
        if every == 1
        else f"one operation in {every}, `--every {every} --first {first}`"
    )
    how = (
        f"{share}, at most two samples forward and two backward. Compiled with Inductor for "
        "`h100-sxm`, results and gradients are compared with those of eager mode on the same "
        "simulated device: float32 within 1e-4, under `autocast` within 0.04 of the largest number."
    )
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton", "numpy")}
    return build_report(
        Heading(how),
        outcomes,
        f"PyTorch's operation database, `op_db`, at commit `{torch.version.git_version}`",
        versions,
        took_s,
        unit="mode",
        script="run_compiled.py",
    )


if __name__ == "__main__":
    sys.exit(main())
