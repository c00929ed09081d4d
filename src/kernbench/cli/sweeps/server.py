"""The process that runs points: one that has imported everything, and a fork of it per point.

``python -m kernbench.cli.sweeps.server`` reads a job per line and answers each with a line. It has
one thread, so that it may be forked wherever it stands: what runs a sweep's points, a worker of a
cluster say, often has many. A point can do what it likes to its process, and be ended at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernbench.cli.programs.kinds import Kind

_POLL_S = 0.02
"""How often memory is looked at, where it has a limit."""
_MOST_OUTPUT = 4000
_PR_SET_PDEATHSIG = 1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MB = 1e6


def main() -> None:
    """Answer jobs until nobody sends any."""
    answers = os.fdopen(os.dup(1), "w")
    # What programs print must not get among the answers.
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _warm_up()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin.buffer:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)
    os._exit(0)  # nothing to clean up, and Triton's bindings would complain of themselves


def _warm_up() -> None:
    """Import and compute what every run needs; a fork has it then."""
    from kernbench.cli.programs import bench_file, failures, parameters  # noqa: F401
    from kernbench.cli.sweeps import points  # noqa: F401

    with contextlib.redirect_stdout(io.StringIO()):
        program = bench_file.load_bench("gemm")
        sizes = dict.fromkeys("mnk", 128)
        _report(_context({"machine": "ahbm", "changes": {}, "room": 1, "ranks": 1}), program, sizes)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page


class _Found(NamedTuple):
    """How a fork ended."""

    status: int
    killed_for: str
    peak_mb: float
    wall_s: float


def _answer(job: Mapping[str, Any]) -> dict[str, Any]:
    if (why := _differs(job)) is not None:
        return {"refused": why}
    if job.get("kind") == Kind.PYTORCH.name:
        _import_torch()
    result, output = os.memfd_create("result"), os.memfd_create("output")
    try:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _in_child(job, result, output)
        wait = _wait(child, job.get("timeout_s"), job.get("memory_mb"))
        return {**_described(wait, _text(result), _text(output)), "host": os.uname().nodename}
    finally:
        os.close(result)
        os.close(output)


@cache
def _import_torch() -> None:
    """Import PyTorch and the bridge once; points that need them have them from then on."""
    from kernbench.cli.programs.torch_programs import import_bridge
    from kernbench.torch_bridge import check_torch

    with contextlib.suppress(Exception):  # the point says what is wrong
        check_torch()
        import_bridge()


def _differs(job: Mapping[str, Any]) -> str | None:
    """Return what of a job is not here as it is where the sweep was begun."""
    from kernbench.cli.sweeps.sources import versions

    here = versions("torch" in job["versions"])
    for name, version in job["versions"].items():
        if here[name] != version:
            return f"{name} is {here[name]} there, but {version} here"
    path = Path(job["program"])
    stamps = _stamps(path)
    if stamps is None:
        return f"there is no {path}; programs must have the same path on all machines"
    if _digest_of(path, stamps) != job["digest"]:
        return f"{path} is another program there, or was changed meanwhile"
    return None


def _stamps(path: Path) -> tuple[int, ...] | None:
    from kernbench.cli.sweeps.sources import program_sources

    try:
        return tuple(program_source.stat().st_mtime_ns for program_source in program_sources(path))
    except OSError:
        return None


@cache
def _digest_of(path: Path, _: tuple[int, ...]) -> str:
    from kernbench.cli.sweeps.sources import program_digest

    return program_digest(path)


def _text(file: int) -> str:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as opened:
        return opened.read().decode(errors="replace")


def _wait(child: int, timeout_s: float | None, memory_mb: float | None) -> _Found:
    """Wait for a fork; end it, and what it has started, at its limits or with whoever asked."""
    begun_s = time.monotonic()
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(0, select.POLLHUP | select.POLLERR)
    killed_for = ""
    while True:
        waited_s = time.monotonic() - begun_s
        left_s = None if timeout_s is None else timeout_s - waited_s
        if not killed_for and left_s is not None and left_s <= 0:
            killed_for = "timeout"
        if not killed_for and memory_mb is not None and _memory_mb(child) > memory_mb:
            killed_for = "memory"
        if killed_for:
            _kill(child)
            left_s = None
        pauses = [it for it in (left_s, _POLL_S if memory_mb else None) if it is not None]
        events = dict(poll.poll(1000 * min(pauses) if pauses else None))
        if ended in events:
            break
        if events:
            _kill(child)
            os._exit(0)  # nobody is there for the answer
    os.close(ended)
    _, status, usage = os.wait4(child, 0)
    _kill(child)  # what it has left behind
    return _Found(status, killed_for, usage.ru_maxrss * 1024 / _MB, time.monotonic() - begun_s)


def _kill(child: int) -> None:
    for target, kill in ((child, os.killpg), (child, os.kill)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(target, signal.SIGKILL)


def _memory_mb(child: int) -> float:
    try:
        fields = Path(f"/proc/{child}/statm").read_text().split()
    except OSError:
        return 0.0
    return int(fields[1]) * _PAGE_BYTES / _MB


def _described(outcome: _Found, result: str, output: str) -> dict[str, Any]:
    """Return a fork's answer, or what there is to say of one that gave none."""
    answer: dict[str, Any] = {
        "peak_mb": round(outcome.peak_mb, 1),
        "wall_s": round(outcome.wall_s, 4),
    }
    whole = os.WIFEXITED(outcome.status) and result.endswith("\n")
    if whole:
        answer.update(json.loads(result))
    elif outcome.killed_for == "timeout":
        answer.update(status="timeout", error=f"ended after {outcome.wall_s:.1f} s, its time-out")
    elif outcome.killed_for == "memory":
        answer.update(status="memory", error=f"ended at {outcome.peak_mb:.0f} MB, over its limit")
    elif os.WIFSIGNALED(outcome.status):
        name = signal.Signals(os.WTERMSIG(outcome.status)).name
        answer.update(status="crashed", error=f"its process was ended by {name}")
    else:
        status = os.waitstatus_to_exitcode(outcome.status)
        answer.update(status="crashed", error=f"its process exited with {status}")
    if answer["status"] != "done":
        answer["output"] = output[-_MOST_OUTPUT:]
    return answer


def _in_child(job: Mapping[str, Any], result: int, output: int) -> None:
    """Run a point, write its answer, and end the process."""
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        answer = run_point(job)
        sys.stdout.flush()
        sys.stderr.flush()
        text = memoryview((json.dumps(answer) + "\n").encode())
        while text:
            text = text[os.write(result, text) :]
    finally:
        os._exit(0)


def run_point(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run one point in this process and return its report, or how it failed."""
    from kernbench.cli.programs.bench_file import load_bench
    from kernbench.cli.programs.failures import describe_failure
    from kernbench.cli.programs.parameters import parameters_of, parse_parameters

    begun_s = time.perf_counter()
    answer: dict[str, Any] = {}
    try:
        os.chdir(job["folder"])
        if job.get("kind", Kind.BENCH.name) != Kind.BENCH.name:
            return _run_program(job)
        bench = load_bench(job["program"])
        params = parse_parameters(job["params"], parameters_of(bench.run), bench.name)
        answer = _report(_context(job), bench, params)
        answer["status"] = "done"
    except BaseException as error:
        text = describe_failure(error)
        answer = {"status": "failed", "error": text.removeprefix("error: ").strip()}
    answer["wall_s"] = round(time.perf_counter() - begun_s, 4)
    return answer


def _run_program(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a PyTorch program or a script as its command does, and return its report."""
    from kernbench.cli.programs.reporting import DONE
    from kernbench.cli.programs.scripts import ScriptOptions, run_script
    from kernbench.cli.programs.torch_programs import TorchrunOptions, torchrun

    os.environ.update(job["environment"])
    # Not next to the program, and gone with this process.
    report = os.memfd_create("report")
    common: dict[str, Any] = {
        "program": job["program"],
        "args": list(job["args"]),
        "machine": job["machine"],
        "settings": [f"{key}={value}" for key, value in job["changes"].items()],
        "data": job["data"],
        "json": f"/proc/self/fd/{report}",
    }
    begun_s = time.perf_counter()
    said = io.StringIO()
    with contextlib.redirect_stderr(_Twice(sys.stderr, said)):
        if job["kind"] == Kind.SCRIPT.name:
            status = run_script(ScriptOptions(**common, seed=job["seed"], tf32=job["tf32"]))
        else:
            common |= {"nproc_per_node": str(job["per_node"]), "nnodes": str(job["nodes"])}
            status = torchrun(TorchrunOptions(**common, fold=job["fold"]))
    answer = {"status": "done", "wall_s": round(time.perf_counter() - begun_s, 4)}
    if status == DONE:
        data = json.loads(_text(report))
        return {**answer, "report": data, "device_memory_bytes": data["device_memory_bytes"]}
    _, _, error = said.getvalue().rpartition("error: ")
    text = error.strip() or f"it has ended with status {status}"
    return {**answer, "status": "failed", "error": text}


class _Twice(io.TextIOBase):
    """Text that goes to two files."""

    def __init__(self, *files: Any) -> None:
        self._files = files

    def write(self, text: str) -> int:
        for file in self._files:
            file.write(text)
        return len(text)

    def flush(self) -> None:
        for file in self._files:
            file.flush()


def _context(job: Mapping[str, Any]) -> Any:
    from kernbench.cli.sweeps.points import changed
    from kernbench.runtime_api import RuntimeContext

    return RuntimeContext(
        machine=changed(job["machine"], job["changes"], job["room"]),
        ranks=job["ranks"],
        data=job.get("data", False),
        seed=job.get("seed", 0),
        tf32=job.get("tf32", "round"),
        check=False,
    )


def _report(context: Any, bench: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    with context:
        bench.start(context, params)
        held = max(map(context.ahbm.max_memory_allocated, range(context.world_size)))
    return {"report": context.report(), "device_memory_bytes": held}


if __name__ == "__main__":
    main()
