"""A warm process that judges: each request in a process forked from it, which keeps nothing.

Its argument is the number of a socket, by which it gets one more for each request: JSON is read
from that, and written.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from kernbench.errors import KernbenchError
from kernbench.judging.executing import Executor
from kernbench.judging.limits import (
    PREFIX,
    CandidateLimits,
    end_with_parent,
    limit_judge,
    remove_folder,
)
from kernbench.judging.recording import CallRecorder
from kernbench.judging.simulation import in_simulation


@triton.jit  # type: ignore[untyped-decorator]
def _rows(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803, ANN
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + at, at < n, 0.0)
    tl.store(y + tl.program_id(0) * n + at, tl.exp(row) / tl.sum(row, 0), at < n)


def rehearse(machine: str) -> None:
    """Record and execute a small kernel on a machine."""

    def work(_: Any) -> None:
        x = torch.ones(2, 8, device="cuda")
        recorder = CallRecorder([x], has_data=True)
        with torch.no_grad(), recorder.recording():
            y = torch.empty_like(x)
            _rows[(2,)](x, y, 8, BLOCK=8)
            y = torch.relu(y * 2)
        Executor(recorder.finish(y), [x]).run()
        torch.softmax(x.double(), -1).cpu()

    in_simulation(work, machine, check=True)


def main() -> None:
    """Judge until there is nothing more to read."""
    control = socket.socket(fileno=int(sys.argv[1]))
    _warm_up()
    control.send(b"!")
    # It ends when whoever asked has, and removes its folder, also if all of a group are to end.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            break
        if os.fork() == 0:
            _answer_and_end(control, socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])
    # Whoever asked has gone, perhaps without a word.
    with suppress(ChildProcessError):
        os.wait()  # for all, as what is ignored cannot be waited for one by one
    folder = Path(tempfile.gettempdir())
    if folder.name.startswith(PREFIX):
        remove_folder(folder)


def _answer_and_end(control: socket.socket, asks: socket.socket) -> None:
    """Answer one request, in a folder of its own that goes; never returns."""
    end_with_parent()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    control.close()
    request = json.loads(b"".join(iter(partial(asks.recv, 1 << 20), b"")))
    folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix=PREFIX)
    answer = _judged(request)
    remove_folder(folder)
    with suppress(BrokenPipeError):
        asks.sendall(json.dumps(answer).encode())
    os._exit(0)


def _warm_up() -> None:
    """Import all that judging needs, and keep it from the garbage collector of forked processes."""
    import importlib

    from kernbench.torch_bridge import import_programs

    import_programs()
    # The last registers itself for good, and candidates whose imports need it would do it again.
    for name in (
        *("kernbench.judging.requests", "triton.language"),
        "torch._dynamo.precompile_context",
    ):
        importlib.import_module(name)
    import torch

    from kernbench.judging.judge import DEFAULT_MACHINES

    torch.set_num_threads(1)
    rehearse(DEFAULT_MACHINES[0])
    gc.collect()
    gc.freeze()


def _judged(value: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request: a verdict, or an error and its kind."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        os.close(read)
        _judge_and_end(value, write)
    os.close(write)
    deadline = time.monotonic() + float(value["total_s"])
    parts: list[bytes] = []
    answer: dict[str, Any] | None = None
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            answer = {"unknown": f"it was not judged within {value['total_s']:g} s"}
            break
        part = os.read(read, 1 << 20)
        if not part:
            break
        parts.append(part)
    os.close(read)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if answer is None:
        try:
            answer = json.loads(b"".join(parts))
        except ValueError:
            how = os.waitstatus_to_exitcode(status)
            answer = {"unknown": f"the process that judged it ended with {how}"}
    return answer


def _judge_and_end(value: dict[str, Any], write: int) -> None:
    """Judge, write the answer and end; never returns."""
    answer: dict[str, Any]
    try:
        from kernbench.judging.requests import JudgeRequest, judge_request

        request = JudgeRequest(
            candidate=Path(value["candidate"]),
            task=Path(value["task"]),
            machines=tuple(value["machines"]),
            limits=CandidateLimits(**value["limits"]),
            **value["options"],
        )
        limit_judge(request.limits)
        answer = {"verdict": judge_request(request).to_dict()}
    except KernbenchError as error:
        answer = {"error": str(error)}
    except BaseException as error:
        answer = {"internal": f"{type(error).__name__}: {error}"}
        if os.environ.get("KERNBENCH_JUDGE_DEBUG"):
            import traceback

            traceback.print_exc()
    data = memoryview(json.dumps(answer).encode())
    while data:
        data = data[os.write(write, data) :]
    os._exit(0)


if __name__ == "__main__":
    main()
