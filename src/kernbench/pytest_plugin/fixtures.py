"""The fixtures of the plug-in: run a program on a machine, and hold its modeled time."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernbench.errors import UsageError
from kernbench.outputs import write_text

if TYPE_CHECKING:
    from kernbench.judging import Judge


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


UPDATE = "--kernbench-update"


@pytest.fixture
def kernbench_run() -> Callable[..., TimedRun]:
    """Return ``run(program, machine="ahbm", ranks=1, data=True, seed=0, args=(), **params)``.

    ``program`` is a function of ``torch`` and ``params``, a bench (a file or a shipped name), or
    any other file that ``kernbench run`` runs, with ``args`` and in a process of its own. What the
    program raises, this raises.
    """
    return _run


@pytest.fixture
def assert_time_within(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return ``check(run, most_us=None, tolerance=0.0, name="")``, which fails a test by time.

    With ``most_us`` the run takes at most so many microseconds. Without, it takes what it took when
    ``pytest --kernbench-update`` kept its time in ``kernbench-times/`` beside the test module, but
    for ``tolerance`` (0.05 is 5 %), whether it is faster or slower: times are deterministic. A test
    that compares several runs gives each a ``name``.
    """

    def check(
        run: TimedRun, most_us: float | None = None, *, tolerance: float = 0.0, name: str = ""
    ) -> None:
        __tracebackhide__ = True
        if not isinstance(run, TimedRun):
            raise UsageError(f"assert_time_within takes what kernbench_run returns, not {run!r}")
        if most_us is not None:
            if not isinstance(most_us, int | float):
                raise UsageError(
                    "assert_time_within takes a number of microseconds (4000 for 4 ms), not "
                    f"{most_us!r}"
                )
            if run.time_us > most_us:
                longest = max(run.kernels_us.items(), key=lambda pair: pair[1], default=None)
                of = "" if longest is None else f"; {longest[0]} alone takes {longest[1]:.2f} us"
                pytest.fail(f"took {run.time_us:.2f} us, and at most {most_us} us are allowed{of}")
            return
        node = request.node
        key = f"{node.nodeid.partition('::')[2]}{f' {name}' if name else ''}"
        _compare(run, KeptTimes.of_module(node.path), key, tolerance, request.config)

    return check


@pytest.fixture(scope="session")
def kernbench_judge() -> Iterator[Judge]:
    """Return ``judge(candidate, task, **options)``, which gives a verdict on a kernel.

    Its worker is started by the first call, and ends with the session.
    """
    from kernbench.judging import Judge

    with Judge() as judge:
        yield judge


def _compare(
    run: TimedRun, times: KeptTimes, key: str, tolerance: float, config: pytest.Config
) -> None:
    __tracebackhide__ = True
    if config.getoption(UPDATE):
        times.keep(key, run)
        return
    kept = times.read().get(key)
    if kept is None:
        pytest.fail(f"no time is kept for {key} in {times.path}; pytest {UPDATE} keeps it")
    if kept["machine"] != run.report["machine"]:
        pytest.fail(
            f"ran on {run.report['machine']}, but the kept time is {kept['machine']}'s; pytest "
            f"{UPDATE} keeps the new one"
        )
    before = float(kept["time_us"])
    if abs(run.time_us - before) > tolerance * before:
        share = f" ({run.time_us / before - 1:+.2%}, allowed {tolerance:.2%})" if before else ""
        pytest.fail(
            f"took {run.time_us:.3f} us, but {before:.3f} us are kept{share}: "
            f"{describe_change(run, kept)}; pytest {UPDATE} keeps the new time"
        )


def _run(
    program: Any,
    *,
    machine: Any = None,
    ranks: int | None = None,
    data: bool = True,
    seed: int = 0,
    args: Sequence[str] = (),
    **params: Any,
) -> TimedRun:
    from kernbench.cli import find_bench
    from kernbench.runtime_api import RuntimeContext

    if not callable(program):
        bench = find_bench(str(program))
        if bench is None:
            return _run_apart(Path(program), machine, ranks, data, args)
        machine, ranks = machine or bench.machine, ranks or bench.ranks
        program = bench.run
    if args:
        raise UsageError("args are of programs in files; a bench takes parameters by name")
    with RuntimeContext(machine or "ahbm", ranks or 1, data, seed) as torch:
        program(torch, **params)
        report = torch.report()
    return TimedRun({**report})


def _run_apart(
    path: Path, machine: Any, ranks: int | None, data: bool, args: Sequence[str]
) -> TimedRun:
    options = [*(["--machine", str(machine)] if machine else []), *([] if data else ["--no-data"])]
    if ranks is not None:
        options += ["--nproc-per-node", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "kernbench", "run", *options, "--json", str(report)]
        done = subprocess.run(
            [*command, str(path), *args], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AssertionError(f"kernbench run {path.name} failed:\n{done.stderr}")
        return TimedRun(json.loads(report.read_text(encoding="utf-8")))
