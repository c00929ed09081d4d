"""The judge on candidates whose verdict is known: benchmarks' references against themselves.

    python tools/judge_truth.py FOLDER [--every N] [--first N] [--drawn N] [--levels L] [--times]

FOLDER is a clone of KernelBench (each ``Model`` as a candidate for itself, level 1 first) or of
TritonBench (each golden kernel for its own inputs). All of them are right, so that *wrong* or
*cheat* is a false alarm; *cannot say* is none, and is counted. One process, one candidate after the
other; ``--every`` takes a sample, ``--drawn`` so many by the hash of their names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kernbench.errors import UsageError
from kernbench.judging import CandidateLimits, Judge


def pairs(folder: Path, scratch: Path, levels: str) -> Iterator[tuple[Path, Path]]:
    """Yield candidates and their tasks."""
    for level in sorted((folder / "KernelBench").glob(f"level[{levels}]")):
        for task in sorted(level.glob("*.py"), key=lambda item: int(item.name.split("_")[0])):
            candidate = scratch / f"{level.name}_{task.name}"
            text = re.sub(r"\bModel\b", "ModelNew", task.read_text())
            candidate.write_text(text)
            yield candidate, task
    golden = folder / "data" / "TritonBench_G_v1"
    for task in sorted(folder.glob("performance_metrics/perf_G/golden_metrics/*_perf.py")):
        candidate = golden / f"{task.stem.removesuffix('_perf')}.py"
        if candidate.is_file():
            yield candidate, task


def main() -> None:
    """Judge them, print what is not right, and count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--drawn", type=int, default=0)
    parser.add_argument("--levels", default="1-3", help="of KernelBench, such as 1")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--times", action="store_true", help="also in modeled time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with Judge() as judge, tempfile.TemporaryDirectory() as scratch:
        known = list(pairs(options.folder, Path(scratch), options.levels))
        if options.drawn:
            known.sort(key=lambda pair: hashlib.sha256(pair[1].name.encode()).digest())
            del known[options.drawn :]
        chosen = known[options.first :: options.every]
        for candidate, task in chosen:
            began = time.monotonic()
            try:
                verdict = judge(
                    candidate, task, times=options.times, seed=1,
                    limits=CandidateLimits(seconds=options.seconds), total_s=4 * options.seconds,
                )  # fmt: skip
                outcome, why, cpu_s = str(verdict.outcome), verdict.why, verdict.cpu_s
            except UsageError as error:
                outcome, why, cpu_s = "error", str(error), 0.0
            wall_s = round(time.monotonic() - began, 1)
            rows.append({"task": task.name, "outcome": outcome, "why": why, "cpu_s": cpu_s})
            if not outcome.startswith("right"):
                print(f"{task.name}: {outcome}: {why} ({wall_s} s)", flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=2) + "\n")
    counts = Counter(row["outcome"] for row in rows)
    print(f"of {len(rows)}: " + ", ".join(f"{n} {what}" for what, n in counts.most_common()))
    cpu_s = sorted(row["cpu_s"] for row in rows)
    print(
        f"judging takes {sum(cpu_s) / len(rows):.2f} s of processor time each, half of them "
        f"at most {cpu_s[len(rows) // 2]:.2f} s; to make a task ready is not counted"
    )


if __name__ == "__main__":
    main()
