"""The fixtures of the plug-in: run a program on a machine, and hold its modeled time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernbench.errors import UsageError
from kernbench.pytest_plugin.kept_times import KeptTimes, TimedRun, describe_change

if TYPE_CHECKING:
    from kernbench.judging import Judge

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
