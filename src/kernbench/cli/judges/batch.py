"""Judging a folder of candidates; each verdict is kept as it comes, so that a batch goes on."""

from __future__ import annotations

import hashlib
import json
import queue
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from kernbench.cli.sweeps.engines import PointEngine, engine
from kernbench.cli.sweeps.store import Claims, ResultFolder
from kernbench.cli.sweeps.table import write_table
from kernbench.errors import UsageError

RESULTS = "verdicts"
TABLE = "verdicts.parquet"
_TASK_FILES = ("task.py", "task.yml")
_LOOK_AGAIN_S = 1.0
_IDLE: queue.SimpleQueue[Any] = queue.SimpleQueue()
"""Judges of this process that wait for a candidate."""


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """A candidate of a batch and its task, by a key of what both say and how they are judged."""

    candidate: str
    task: str
    key: str
    options: Mapping[str, Any]

    @property
    def job(self) -> dict[str, Any]:
        """What a worker is sent."""
        return {"candidate": self.candidate, "task": self.task, "options": dict(self.options)}


def entries_of(folder: Path, against: str | None, options: Mapping[str, Any]) -> list[BatchEntry]:
    """Return the candidates of a folder.

    With ``against`` all its Python files are candidates for that task. Without, each folder in it
    is a task (``task.py``, or ``task.yml`` and what belongs to it) with its candidates beside.

    Raises:
        UsageError: There are none.
    """
    if not folder.is_dir():
        raise UsageError(f"--batch {folder} is no folder")
    found = sorted(_pairs(folder, against))
    if not found:
        raise UsageError(
            f"{folder} has no candidates: Python files, for --against TASK, or folders that each "
            "have a task.py or task.yml beside their candidates"
        )
    texts: dict[str, bytes] = {}
    made = []
    for candidate, task in found:
        if task not in texts:
            texts[task] = b"".join(each.read_bytes() for each in _files_of(Path(task)))
        about = json.dumps(
            {"options": options, "of": metadata.version("kernbench")}, sort_keys=True
        )
        parts = (candidate.encode(), Path(candidate).read_bytes(), texts[task], about.encode())
        digest = hashlib.sha256(b"\0".join(hashlib.sha256(each).digest() for each in parts))
        made.append(BatchEntry(candidate, task, digest.hexdigest()[:24], options))
    return made


def _pairs(folder: Path, against: str | None) -> Iterator[tuple[str, str]]:
    if against is not None:
        task = Path(against).absolute()
        for path in folder.glob("*.py"):
            if path.absolute() != task:
                yield str(path.absolute()), str(task)
        return
    for own in folder.iterdir():
        names = [each for each in _TASK_FILES if (own / each).exists()]
        if names:
            task = (own / names[0] if names[0] == "task.py" else own).absolute()
            parts = {"task.py"} if names[0] == "task.py" else _NOT_CANDIDATES
            for path in own.glob("*.py"):
                if path.name not in parts:
                    yield str(path.absolute()), str(task)


_NOT_CANDIDATES = {"reference.py", "task.py", "utils.py", "eval.py"}
"""Files of a task of GPU MODE's form."""


def _files_of(task: Path) -> list[Path]:
    if task.is_file():
        return [task]
    return [each for each in sorted(task.glob("*")) if each.name in {*_NOT_CANDIDATES, "task.yml"}]


def run_batch(
    folder: Path, entries: Sequence[BatchEntry], engine_name: str, workers: int | None
) -> Iterator[tuple[BatchEntry, dict[str, Any]]]:
    """Yield each verdict as it comes; those that the folder has come first.

    Raises:
        UsageError: There is no such engine.
        OutputError: The folder of verdicts is something else.
    """
    store = ResultFolder(folder / RESULTS, "kernbench judge")
    waiting = []
    for each in entries:
        if store.row(each.key) is not None:
            yield each, store.report(each.key) or {}
        else:
            waiting.append(each)
    if not waiting:
        return
    with engine(engine_name, workers, judged_job) as used, store.taking() as claims:
        yield from _run(waiting, used, store, claims)


def _run(
    waiting: list[BatchEntry], used: PointEngine, store: ResultFolder, claims: Claims
) -> Iterator[tuple[BatchEntry, dict[str, Any]]]:
    running: dict[Future[dict[str, Any]], BatchEntry] = {}
    elsewhere: list[BatchEntry] = []
    while waiting or running or elsewhere:
        while waiting and len(running) <= used.slots():
            entry = waiting.pop(0)
            if claims.take(entry.key):
                running[used.submit(entry.job)] = entry
            else:
                elsewhere.append(entry)
        done, _ = wait(running, _LOOK_AGAIN_S, FIRST_COMPLETED)
        for future in done:
            entry = running.pop(future)
            verdict = future.result()
            claims.keep({"key": entry.key, "status": "done"}, verdict)
            yield entry, verdict
        for entry in [*elsewhere]:
            if store.row(entry.key) is not None:  # another command has judged it meanwhile
                elsewhere.remove(entry)
                yield entry, store.report(entry.key) or {}
            elif not running and claims.take(entry.key):  # which has ended without
                elsewhere.remove(entry)
                running[used.submit(entry.job)] = entry


def judged_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on a job, by a warm judge of this process."""
    from kernbench.errors import KernbenchError
    from kernbench.judging import CandidateLimits, Judge, Outcome, Verdict

    try:
        judge = _IDLE.get_nowait()
    except queue.Empty:
        judge = Judge()
    options = dict(job["options"])
    options["limits"] = CandidateLimits(**options["limits"])
    try:
        verdict = judge(job["candidate"], job["task"], **options)
    except KernbenchError as error:
        verdict = Verdict(job["candidate"], job["task"], "", Outcome.UNKNOWN, str(error), 0)
    finally:
        _IDLE.put(judge)
    answer: dict[str, Any] = verdict.to_dict()
    return answer


def end_judges() -> None:
    """End the judges of this process that wait."""
    while not _IDLE.empty():
        _IDLE.get_nowait().close()


def write_verdicts(verdicts: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a table with a row for each candidate and machine."""
    rows = []
    for verdict in verdicts:
        row = {
            key: verdict[key] for key in ("task", "candidate", "outcome", "why", "seed", "cpu_s")
        }
        rows += [
            {**row, **{key: time.get(key) for key in _TIMES}} for time in verdict["times"] or [{}]
        ]
    write_table(rows, str(path))


_TIMES = (
    "machine", "size", "time_ns", "low_ns", "high_ns", "eager_ns", "compiled_ns", "speedup",
    "speedup_low", "speedup_high", "speed", "floor_ns", "own_share",
)  # fmt: skip
