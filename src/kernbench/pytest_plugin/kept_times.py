"""Modeled times that tests keep, in a file beside the test module, and compare later runs with."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.errors import UsageError
from kernbench.outputs import write_text

FOLDER = "kernbench-times"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class TimedRun:
    """What :func:`kernbench_run` returns: the report of a run, and its time."""

    report: dict[str, Any]
    """What ``--json`` prints."""

    @property
    def time_us(self) -> float:
        """The modeled time of the run, in microseconds."""
        return float(self.report["time_ns"]) / 1000

    @property
    def kernels_us(self) -> dict[str, float]:
        """The modeled time of each kernel, in microseconds, all launches together."""
        return {item["name"]: item["time_ns"] / 1000 for item in self.report["kernels"]}

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{time:.2f} us</td></tr>"
            for name, time in self.kernels_us.items()
        )
        return (
            f"<p>{self.time_us:.2f} us on {escape(self.report['machine'])}</p><table>{rows}</table>"
        )


@dataclass(frozen=True, slots=True)
class KeptTimes:
    """The times of the tests of one module."""

    path: Path
    """The JSON file: for each test, its time, its machine, and the times of its kernels."""

    @staticmethod
    def of_module(module: Path) -> KeptTimes:
        """Return the times that are kept for a test module."""
        return KeptTimes(module.parent / FOLDER / f"{module.stem}.json")

    def read(self) -> dict[str, Any]:
        """Return all of them, by test.

        Raises:
            UsageError: The file is none that was written here.
        """
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path}: cannot be read: {error}") from None
        if not isinstance(data, dict) or not all(isinstance(v, dict) for v in data.values()):
            raise UsageError(f"{self.path}: holds no kept times; remove it and keep them again")
        return data

    def keep(self, name: str, run: TimedRun) -> None:
        """Keep the times of a test. Other processes may do so for other tests of the module."""
        with self._alone():
            values = self.read()
            values[name] = {
                "machine": run.report["machine"],
                "time_us": run.time_us,
                "kernels_us": run.kernels_us,
            }
            write_text(self.path, json.dumps(values, indent=1, sort_keys=True) + "\n")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (self.path.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def describe_change(run: TimedRun, kept: dict[str, Any]) -> str:
    """Return which kernels take another time than they did, the largest changes first."""
    before = {name: float(time) for name, time in kept.get("kernels_us", {}).items()}
    now = run.kernels_us
    changes = {name: now.get(name, 0.0) - before.get(name, 0.0) for name in {*before, *now}}
    largest = sorted(changes, key=lambda name: (-abs(changes[name]), name))
    texts = [
        f"{name} {before.get(name, 0.0):.2f} -> {now.get(name, 0.0):.2f} us"
        for name in largest[:_MOST_NAMED]
        if changes[name]
    ]
    return ", ".join(texts) or "no kernel takes another time; what changed is between them"
