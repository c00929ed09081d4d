"""Runs the programs of layouts: a plan proposes, and its best are run folded (ADR-0255)."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from kernbench.errors import InternalError, KernbenchError
from kernbench.hardware import Machine
from kernbench.plans import PROGRAM, Job, Layout, ModelShape, PlanTimes, TimedLayout

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


_OF_MODEL = frozenset(
    {"hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "gated", "bias"}
    | {"rms_norm", "experts", "top_k", "expert_intermediate"}
)
_OF_LAYOUT = frozenset(
    {"tp", "pp", "cp", "dp", "ep", "sequence_parallel", "microbatch", "microbatches"}
    | {"shard", "shards"}
)
_LEFT_OUT = {
    "latent_kv": "latent attention is run as attention with keys and values of each head",
    "window": "windows of attention are run as attention to all earlier tokens",
    "tied": "the tied embedding is run as two tables",
}
"""What a program does otherwise than the model, by the field that says so."""


class ProgramFailedError(Exception):
    """The program of a layout failed; the text is its last line."""


@dataclass(frozen=True, kw_only=True)
class LayoutPrograms:
    """Runs programs of layouts of one model and job on one machine."""

    model: ModelShape
    job: Job
    machine: Machine
    file: str
    """The machine's preset or file."""
    compiles: bool

    def config(self, timed: TimedLayout) -> dict[str, Any]:
        """Return what the program of a layout is given."""
        model, layout = asdict(self.model), asdict(timed.layout)
        # Tables are padded, as the layers that are timed for a proposal are.
        wide = 128 * timed.layout.tp
        return {
            **{name: model[name] for name in sorted(_OF_MODEL)},
            **{name: layout[name] for name in sorted(_OF_LAYOUT)},
            "vocabulary": -(-self.model.vocabulary // wide) * wide,
            "seq": self.job.seq,
            "recompute": "full" if timed.layout.recompute else "none",
            "compile": self.compiles,
        }

    def command(self, config: str, program: str = str(PROGRAM)) -> list[str]:
        """Return the arguments of ``kernbench`` that run a program, folded where it has ranks."""
        hosts, devices = self.machine.num_hosts, self.job.devices
        ranks = ["--nnodes", str(hosts), "--nproc-per-node", str(devices // hosts)]
        folds = ["--fold", "--no-fold-bound"] if devices > 1 else []
        machine = f"{self.file}:{devices}"
        return ["torchrun", "--machine", machine, *ranks, "--no-data", *folds, program, config]

    def run(
        self, proposals: Sequence[TimedLayout], say: Callable[[str], None]
    ) -> Iterator[TimedLayout | str]:
        """Yield each layout as it ran, or why its program failed; some run at the same time."""
        workers = min(len(os.sched_getaffinity(0)), len(proposals))
        running: list[subprocess.Popen[str]] = []
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
            started = [
                pool.submit(self._run_one, proposal, Path(folder) / f"{number}.json", running)
                for number, proposal in enumerate(proposals)
            ]
            try:
                for number, (pair, future) in enumerate(zip(proposals, started, strict=True)):
                    say(f"runs {number + 1} of {len(started)} programs, {pair.layout.label}")
                    try:
                        yield future.result()
                    except ProgramFailedError as error:
                        yield f"{pair.layout.label}: {error}"
            finally:
                for future in started:
                    future.cancel()
                for process in running:
                    with contextlib.suppress(OSError):
                        process.kill()

    def _run_one(
        self, proposal: TimedLayout, config: Path, running: list[subprocess.Popen[str]]
    ) -> TimedLayout:
        config.write_text(json.dumps(self.config(proposal)))
        command = [sys.executable, "-m", "kernbench", *self.command(str(config))]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        out, err = process.communicate()
        running.remove(process)
        steps = [json.loads(line) for line in out.splitlines() if line.startswith('{"step_us"')]
        if process.returncode or not steps:
            said = [line for line in err.splitlines() if "error" in line.lower()]
            raise ProgramFailedError(said[0] if said else f"status {process.returncode}")
        last: Mapping[str, float] = steps[-1]
        return proposal.as_run(last["step_us"] / 1e6, last["peak_bytes"], self.machine)

    def write(self, timed: TimedLayout, folder: str) -> str:
        """Write the program of a layout and its configuration; return the command that runs it."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAM, place / PROGRAM.name)
        (place / "config.json").write_text(json.dumps(self.config(timed), indent=2) + "\n")
        files = (str(place / "config.json"), str(place / PROGRAM.name))
        return "kernbench " + " ".join(self.command(*files))

    def remarks(self) -> list[str]:
        """Return what programs do otherwise than the model."""
        return [text for name, text in _LEFT_OUT.items() if getattr(self.model, name)]


def missing() -> str:
    """Return why programs cannot be run here; empty where they can."""
    if importlib.util.find_spec("torch") is None:
        return 'no program was run: that needs PyTorch, pip install "kernbench[torch]"'
    return ""
