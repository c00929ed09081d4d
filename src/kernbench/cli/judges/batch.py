"""Judging a folder of candidates; each verdict is kept as it comes, so that a batch goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from kernbench.cli.sweeps.engines import engine
from kernbench.cli.sweeps.points import Point
from kernbench.cli.sweeps.running import Limits, Progress, run_points
from kernbench.cli.sweeps.store import ResultFolder
from kernbench.cli.sweeps.table import write_table
from kernbench.errors import KernbenchError, UsageError
from kernbench.judging import CandidateLimits, JudgePool, Outcome, Verdict

RESULTS = "verdicts"
TABLE = "verdicts.parquet"
_TASK_FILES = ("task.py", "task.yml")
_JUDGES = JudgePool()
"""The judges of this process."""


def points_of(folder: Path, against: str | None, options: Mapping[str, Any]) -> list[Point]:
    """Return the candidates of a folder, each a point of what both files say and of the options.

    With ``against`` all its Python files are candidates for that task. Without, each folder in it
    is a task (``task.py``, or ``task.yml`` and what belongs to it) with its candidates beside.

    Raises:
        UsageError: There are none.
    """
    if not folder.is_dir():
        raise UsageError(f"--batch {folder} is no folder")
    pairs = sorted(_pairs(folder, against))
    if not pairs:
        raise UsageError(
            f"{folder} has no candidates: Python files, for --against TASK, or folders that each "
            "have a task.py or task.yml beside their candidates"
        )
    texts: dict[str, bytes] = {}
    points = []
    for candidate, task in pairs:
        if task not in texts:
            texts[task] = b"".join(file.read_bytes() for file in _files_of(Path(task)))
        about = json.dumps(
            {"options": options, "of": metadata.version("kernbench")}, sort_keys=True
        )
        parts = (candidate.encode(), Path(candidate).read_bytes(), texts[task], about.encode())
        digest = hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts))
        asked = {"candidate": candidate, "task": task}
        job = {**asked, "options": dict(options)}
        points.append(Point(key=digest.hexdigest()[:24], values=asked, job=job))
    return points


def _pairs(folder: Path, against: str | None) -> Iterator[tuple[str, str]]:
    if against is not None:
        task = Path(against).absolute()
        for path in folder.glob("*.py"):
            if path.absolute() != task and path.is_file():
                yield str(path.absolute()), str(task)
        return
    for own in folder.iterdir():
        names = [file for file in _TASK_FILES if (own / file).exists()]
        if names:
            task = (own / names[0] if names[0] == "task.py" else own).absolute()
            parts = {"task.py"} if names[0] == "task.py" else _NOT_CANDIDATES
            for path in own.glob("*.py"):
                if path.name not in parts and path.is_file():
                    yield str(path.absolute()), str(task)


_NOT_CANDIDATES = {"reference.py", "task.py", "utils.py", "eval.py"}
"""Files of a task of GPU MODE's form."""


def _files_of(task: Path) -> list[Path]:
    if task.is_file():
        return [task]
    return [path for path in sorted(task.glob("*")) if path.name in {*_NOT_CANDIDATES, "task.yml"}]


def run_batch(
    folder: Path, points: Sequence[Point], engine_name: str, workers: int | None, progress: Progress
) -> list[dict[str, Any]]:
    """Return the verdicts on candidates; those that the folder has are not judged again.

    Raises:
        UsageError: There is no such engine.
        OutputError: The folder of verdicts is something else.
        KernbenchError: Workers died while they judged.
    """
    store = ResultFolder(folder / RESULTS, "kernbench judge")
    there = store.rows(points)
    progress.kept = len(there)
    new = [point for point in points if point.key not in there]
    if new:
        with engine(engine_name, workers, judged_job) as used:
            run_points(new, frozenset(), store, used, Limits(), progress, _row)
    if progress.lost:
        raise KernbenchError(
            f"{len(progress.lost)} candidates were lost with their workers, three times each, such "
            f"as {progress.lost[0]}; call it again to go on"
        )
    return [verdict for point in points if (verdict := store.report(point.key)) is not None]


def _row(point: Point, answer: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": point.key, "status": answer["status"], **limits}


def judged_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on a job as its report, by a warm judge of this process."""
    options = dict(job["options"])
    options["limits"] = CandidateLimits(**options["limits"])
    try:
        verdict = _JUDGES.judge(job["candidate"], job["task"], **options)
    except KernbenchError as error:
        verdict = Verdict(job["candidate"], job["task"], "", Outcome.UNKNOWN, str(error), 0)
    return {"status": "done", "report": verdict.to_dict()}


def end_judges() -> None:
    """End the judges of this process."""
    _JUDGES.close()


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
